//! The identity of a process across the reuse of process ids.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process, distinguished from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// The start of the process, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// Returns the process that has this id now; `None` if there is none, or only a zombie that has not been waited for.
    pub fn from_pid(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the command in parentheses, which may itself contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let start_ticks = fields.nth(18)?.parse().ok()?;
        Some(Self { pid, start_ticks })
    }

    /// Returns the identity of the calling process.
    pub fn current() -> Self {
        Self::from_pid(std::process::id()).expect("a running process has its /proc/PID/stat")
    }

    /// Returns true if the process still runs.
    pub fn is_alive(&self) -> bool {
        Self::from_pid(self.pid).as_ref() == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_has_been_waited_for_or_died() {
        assert!(ProcessIdentity::current().is_alive());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let identity = ProcessIdentity::from_pid(child.id()).unwrap();
        assert!(identity.is_alive());
        assert!(
            !ProcessIdentity {
                start_ticks: identity.start_ticks + 1,
                ..identity
            }
            .is_alive()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!identity.is_alive());
    }
}
