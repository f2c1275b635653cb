//! A private server of PostgreSQL: one that the environment names, or the machine's own programs on a folder of this test.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// The variable with the URL of a server that may make databases.
const VARIABLE: &str = "PACKHORSE_TEST_POSTGRES";
/// The time for a start, also after a crash.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A server, which ends with this.
#[derive(Debug)]
pub(crate) struct Server {
    folder: TempDir,
    programs: PathBuf,
    /// The arguments beside those of every start.
    arguments: Vec<String>,
    process: Option<Child>,
}

/// Returns the URL of a server that others share, if the environment names one.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no command line of its own"
)]
pub(crate) fn shared() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|url| !url.is_empty())
}

impl Server {
    /// Starts a server. `None`, which is said loudly, where the machine has no programs.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(|_| Vec::new())
    }

    /// Starts a server with more arguments, for which the folder may be filled.
    pub(crate) fn start_with(arguments: impl FnOnce(&Path) -> Vec<String>) -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!(
                "SKIPPED: no PostgreSQL: neither {VARIABLE} nor /usr/lib/postgresql/*/bin/initdb is there (apt-get install postgresql)"
            );
            return None;
        };
        // Short, as the path of a socket is at most 107 bytes long.
        let folder = tempfile::Builder::new()
            .prefix("packhorse-pg-")
            .tempdir_in("/tmp")
            .unwrap();
        let mut this = Self {
            folder,
            programs,
            arguments: Vec::new(),
            process: None,
        };
        Self::own(&[this.folder.path().to_owned()]);
        let initialised = this
            .command("initdb")
            .arg("-D")
            .arg(this.data())
            .args(["-U", "packhorse", "-A", "trust", "--no-sync", "-E", "UTF8"])
            .arg("--locale=C")
            .output()
            .unwrap();
        assert!(
            initialised.status.success(),
            "{}",
            String::from_utf8_lossy(&initialised.stderr)
        );
        this.arguments = arguments(this.folder.path());
        let files = fs::read_dir(this.folder.path()).unwrap();
        let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        Self::own(&files);
        this.resume();
        Some(this)
    }

    /// Gives files to the user of the server, who is not root.
    fn own(files: &[PathBuf]) {
        if is_root() {
            let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
            for file in files {
                chown(file, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).unwrap();
            }
        }
    }

    /// Returns the command of a program of PostgreSQL, which root may not run itself, and which ends with this thread.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        if is_root() {
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
        }
        command.args(["--pdeathsig", "QUIT"]);
        command.arg(self.programs.join(program));
        command.current_dir(self.folder.path());
        command
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the server again after [`Server::kill`].
    #[expect(
        clippy::disallowed_methods,
        reason = "a server that does not start is waited for in real time"
    )]
    pub(crate) fn resume(&mut self) {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.folder.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .args(["-c", "synchronous_commit=off", "-c", "max_connections=100"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.process = Some(command.spawn().unwrap());
        let since = Instant::now();
        loop {
            let ready = Command::new(self.programs.join("pg_isready"))
                .args(["-q", "-U", "packhorse", "-d", "postgres", "-h"])
                .arg(self.folder.path())
                .args(["-p", &self.port()])
                .status()
                .unwrap();
            if ready.success() {
                return;
            }
            assert!(
                since.elapsed() < START_LIMIT,
                "the server does not start: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let id = nix::unistd::Pid::from_raw(process.id().try_into().unwrap());
            nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGQUIT).unwrap();
            process.wait().unwrap();
        }
    }

    /// Returns the URL of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        let folder = self.folder.path().display();
        format!("postgres://packhorse@localhost/{database}?host={folder}")
    }

    /// Returns the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join(".s.PGSQL.5432")
    }

    /// Returns the port, which is a part of the socket's name, too.
    fn port(&self) -> String {
        let given = self.arguments.iter().find_map(|a| a.strip_prefix("port="));
        given.unwrap_or("5432").to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns the folder of the programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.map(|version| version.unwrap().path().join("bin"));
    folders
        .filter(|folder| folder.join("initdb").exists())
        .max()
}
