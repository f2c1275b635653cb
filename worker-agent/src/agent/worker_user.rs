//! The user that workers and MPS daemons run as where that is not the agent's, and what of the agent's files it may use.
//!
//! A model is code of somebody else. As a user of its own it has neither the files of the gateway and the agent nor their processes, on every kernel and
//! whatever its worker's confinement leaves open. The agent's folders stay root's: the group of the workers may pass through them, read what is
//! named to it, and create files where it must. There nobody but root can replace a file of root's (the folders are sticky), so that a link that a model
//! leaves leads the agent nowhere.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::{PermissionsExt as _, lchown},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use packhorse_service::{Libtorch, SystemUser};

use crate::environment::{inherited, library_path};

/// The user of the workers: one of their own, or the agent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerUser(Option<SystemUser>);

/// The choice of the workers' user by the flag, or without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkerUserChoice {
    user: WorkerUser,
    is_given: bool,
}

/// The needs of a worker at its start.
#[derive(Debug)]
pub(super) struct WorkerNeeds<'a> {
    /// The program of workers.
    pub(super) program: &'a Path,
    /// The libtorch that it is started with.
    pub(super) libtorch: Option<&'a Libtorch>,
    /// The files of TLS that it reads.
    pub(super) tls_files: Vec<&'a Path>,
}

/// A user that workers cannot run as.
#[derive(Debug, thiserror::Error)]
#[error("--worker-user: a worker cannot run as {user}: {reason}")]
pub(super) struct UnusableUser {
    user: SystemUser,
    reason: String,
}

impl WorkerUserChoice {
    /// Returns the given user, or that of workers if this system has it and the agent is root. The agent's own user is none of their own.
    pub(super) fn new(given: Option<SystemUser>) -> Self {
        let own = rustix::process::geteuid();
        let is_given = given.is_some();
        let by_default = || own.is_root().then(SystemUser::of_workers).flatten();
        let user = given.or_else(by_default);
        Self {
            user: WorkerUser(user.filter(|user| user.uid != own.as_raw())),
            is_given,
        }
    }

    /// Returns the user if workers can run as it. Says in the log which one it is.
    ///
    /// # Errors
    /// The given user cannot run workers. If it is the default, workers run as the agent's.
    pub(super) fn usable(
        self,
        needs: &WorkerNeeds<'_>,
        state: &Path,
    ) -> Result<WorkerUser, UnusableUser> {
        let Some(user) = &self.user.0 else {
            if rustix::process::geteuid().is_root() && !self.is_given {
                tracing::warn!(
                    "workers run as root: create a system user packhorse-worker, or name another with --worker-user"
                );
            }
            return Ok(WorkerUser::default());
        };
        match self.user.check(needs, state) {
            Ok(()) => {
                tracing::info!(worker.user = %user, worker.uid = user.uid, "workers run as a user of their own");
                Ok(self.user)
            }
            Err(reason) => {
                let user = user.clone();
                let error = UnusableUser { user, reason };
                if self.is_given {
                    return Err(error);
                }
                tracing::warn!(%error, "workers run as the agent's user");
                Ok(WorkerUser::default())
            }
        }
    }
}

impl WorkerUser {
    /// Returns the number of the user; `None` if it is the agent's.
    pub(super) fn uid(&self) -> Option<u32> {
        self.0.as_ref().map(|user| user.uid)
    }

    /// Makes a program run as this user, with its main group and no other.
    pub(super) fn run(&self, command: &mut Command) {
        if let Some(user) = &self.0 {
            // As root the standard library gives up the agent's other groups, too.
            command.gid(user.gid).uid(user.uid);
        }
    }

    /// Lets workers pass through a folder, to files whose names they know.
    pub(super) fn let_pass(&self, folder: &Path) -> io::Result<()> {
        self.give_group(folder, 0o710)
    }

    /// Lets workers read a file.
    pub(super) fn let_read(&self, file: &Path) -> io::Result<()> {
        self.give_group(file, 0o640)
    }

    /// Lets workers read and write a file.
    pub(super) fn let_write(&self, file: &Path) -> io::Result<()> {
        self.give_group(file, 0o660)
    }

    /// Lets workers create files in a folder, and replace those that are theirs.
    pub(super) fn let_create(&self, folder: &Path) -> io::Result<()> {
        self.give_group(folder, 0o1770)
    }

    /// Gives a folder away to the user.
    pub(super) fn give(&self, folder: &Path) -> io::Result<()> {
        let Some(user) = &self.0 else {
            return Ok(());
        };
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        lchown(folder, Some(user.uid), Some(user.gid))
    }

    /// Gives a file of the agent's to the group. Nobody else can have replaced it.
    fn give_group(&self, path: &Path, mode: u32) -> io::Result<()> {
        let Some(user) = &self.0 else {
            return Ok(());
        };
        lchown(path, None, Some(user.gid))?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    /// Tries what every worker does: to start from the state folder, with libtorch, and to read the files of TLS.
    fn check(&self, needs: &WorkerNeeds<'_>, state: &Path) -> Result<(), String> {
        self.let_pass(state).map_err(|e| e.to_string())?;
        let mut worker = Command::new(needs.program);
        worker
            .arg("--version")
            .env_clear()
            .envs(inherited())
            .envs(library_path(needs.libtorch));
        self.succeeds(&mut worker, state)
            .map_err(|reason| format!("{}: {reason}", needs.program.display()))?;
        for file in &needs.tls_files {
            self.succeeds(Command::new("test").arg("-r").arg(file), state)
                .map_err(|_| format!("it cannot read {} of --link-tls", file.display()))?;
        }
        Ok(())
    }

    /// Runs a program as this user in a folder to its end.
    fn succeeds(&self, command: &mut Command, folder: &Path) -> Result<(), String> {
        self.run(command);
        let done = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| e.to_string())?;
        if done.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&done.stderr);
        let line = text.lines().next().map(str::to_owned);
        Err(line.unwrap_or_else(|| done.status.to_string()))
    }
}

/// Returns standard input with this secret, for a worker that cannot read its file.
///
/// # Errors
/// The file cannot be read, or has more than a pipe takes.
pub(super) fn pass_secret(file: &Path) -> io::Result<Stdio> {
    /// The most bytes of a secret's file. A pipe takes more before its reader reads.
    const LIMIT: u64 = 4096;
    let mut secret = Vec::new();
    File::open(file)?.take(LIMIT + 1).read_to_end(&mut secret)?;
    if secret.len() as u64 > LIMIT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    if secret.trim_ascii().is_empty() {
        return Err(io::Error::other("the file is empty"));
    }
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(&secret)?;
    Ok(reader.into())
}
