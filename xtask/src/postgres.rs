//! A private PostgreSQL for the tests of the store, of the machine's own programs.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{debian, workspace::now};
use anyhow::{Context as _, bail, ensure};

/// The variable with the URL of the server, which the tests read.
pub(crate) const VARIABLE: &str = "PACKHORSE_TEST_POSTGRES";
/// The time for a start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The user and group of the server in place of root, by their numbers on Debian.
const NOBODY: u32 = 65534;

/// A server, which ends with this.
pub(crate) struct Postgres {
    folder: PathBuf,
    server: Child,
}

impl Postgres {
    /// Starts a server, for which Debian's package is installed where the machine has none.
    ///
    /// # Errors
    /// If there is none, or it does not start.
    pub(crate) fn start() -> anyhow::Result<Self> {
        if programs().is_none() {
            debian::install(&["postgresql"]).map_err(|e| anyhow::anyhow!("no PostgreSQL: {e}"))?;
        }
        let programs = programs().context("Debian's postgresql has no initdb")?;
        // Short, as the path of a socket is at most 107 bytes long.
        let folder = PathBuf::from(format!("/tmp/packhorse-pg-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        // PostgreSQL refuses root.
        let as_nobody = fs::metadata(&folder)?.uid() == 0;
        if as_nobody {
            chown(&folder, Some(NOBODY), Some(NOBODY))?;
        }
        let command = |program: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "QUIT"]);
            if as_nobody {
                let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
                command.args(ids).arg("--clear-groups");
            }
            command.arg(programs.join(program)).current_dir(&folder);
            command
        };
        let data = &folder.join("data");
        let made = command("initdb")
            .arg("-D")
            .arg(data)
            .args([
                "-U",
                "packhorse",
                "-A",
                "trust",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
            ])
            .output()
            .context("setpriv and initdb")?;
        ensure!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let settings = [
            "listen_addresses=",
            "fsync=off",
            "synchronous_commit=off",
            "max_connections=200",
        ];
        let server = command("postgres")
            .arg("-D")
            .arg(data)
            .arg("-k")
            .arg(&folder)
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("postgres")?;
        let this = Self { folder, server };
        this.wait(&programs)?;
        Ok(this)
    }

    /// Waits until the server answers.
    fn wait(&self, programs: &Path) -> anyhow::Result<()> {
        let since: Instant = now();
        loop {
            let ready = Command::new(programs.join("pg_isready"))
                .args(["-q", "-U", "packhorse", "-d", "postgres", "-h"])
                .arg(&self.folder)
                .status()?;
            if ready.success() {
                return Ok(());
            }
            if since.elapsed() > START_LIMIT {
                bail!("PostgreSQL has not started within {START_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the URL of a database that is there.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgres://packhorse@localhost/postgres?host={}",
            self.folder.display()
        )
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its processes end with the one that started them.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the folder of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.flatten().map(|version| version.path().join("bin"));
    folders
        .filter(|folder| folder.join("initdb").is_file())
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_at_its_url_and_leaves_nothing_behind() {
        let Some(programs) = programs() else {
            println!("skipped: the machine has no PostgreSQL");
            return;
        };
        let server = Postgres::start().unwrap();
        let mut psql = Command::new(programs.join("psql"));
        psql.arg(server.url()).args(["-At", "-c", "SELECT 6 * 7"]);
        let answer = psql.output().unwrap();
        assert_eq!(answer.stdout, b"42\n", "{answer:?}");
        let (folder, process) = (server.folder.clone(), server.server.id());
        drop(server);
        assert!(!folder.exists());
        assert!(!PathBuf::from(format!("/proc/{process}")).exists());
    }
}
