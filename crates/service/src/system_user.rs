//! The users of this system that a flag names.

use std::{fmt, io, str::FromStr};

use nix::unistd::{Uid, User};

/// The user that workers run as where it exists and the agent is root.
pub const WORKER_USER: &str = "packhorse-worker";

/// A user of this system with its main group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemUser {
    /// The name, or the number where the user has no entry.
    pub name: String,
    /// The number of the user.
    pub uid: u32,
    /// The number of the user's main group; that of the user where it has no entry.
    pub gid: u32,
}

/// A text that names no user of this system.
#[derive(Debug, thiserror::Error)]
pub enum UnknownUser {
    /// There is no user of this name, and it is no number.
    #[error("this system has no user {0:?}")]
    Name(String),
    /// The users of the system cannot be read.
    #[error("the users of this system cannot be read: {0}")]
    System(#[source] io::Error),
}

impl SystemUser {
    /// Returns the user that workers run as by default; `None` if this system has none.
    pub fn of_workers() -> Option<Self> {
        WORKER_USER.parse().ok()
    }
}

impl FromStr for SystemUser {
    type Err = UnknownUser;

    /// Finds the user of a name or a number.
    fn from_str(text: &str) -> Result<Self, UnknownUser> {
        let system = |error: nix::Error| UnknownUser::System(error.into());
        let number: Option<u32> = text.parse().ok();
        let found = match number {
            Some(uid) => User::from_uid(Uid::from_raw(uid)),
            None => User::from_name(text),
        };
        match (found.map_err(system)?, number) {
            (Some(user), _) => Ok(Self {
                name: user.name,
                uid: user.uid.as_raw(),
                gid: user.gid.as_raw(),
            }),
            (None, Some(uid)) => Ok(Self {
                name: uid.to_string(),
                uid,
                gid: uid,
            }),
            (None, None) => Err(UnknownUser::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for SystemUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_name_or_number_and_a_number_needs_no_entry() {
        let root: SystemUser = "root".parse().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!("0".parse::<SystemUser>().unwrap(), root);
        let bare: SystemUser = "3141592653".parse().unwrap();
        assert_eq!((bare.uid, bare.gid), (3_141_592_653, 3_141_592_653));
        let error = "no such user".parse::<SystemUser>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "this system has no user \"no such user\""
        );
    }
}
