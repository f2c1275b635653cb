//! The CPU time and the page faults of this process.

use std::time::Duration;

use nix::sys::{
    resource::{Usage, UsageWho, getrusage},
    time::{TimeVal, TimeValLike as _},
};

/// The resources that this process has used.
#[derive(Default)]
pub(super) struct ProcessUsage {
    pub(super) cpu: Duration,
    pub(super) minor_faults: u64,
}

impl ProcessUsage {
    pub(super) fn so_far() -> Result<Self, String> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|e| format!("getrusage: {e}"))?;
        let cpu = |time: fn(&Usage) -> _| -> Duration {
            let time: TimeVal = time(&usage);
            Duration::from_micros(time.num_microseconds().unsigned_abs())
        };
        Ok(Self {
            cpu: cpu(Usage::user_time) + cpu(Usage::system_time),
            minor_faults: usage.minor_page_faults().unsigned_abs(),
        })
    }

    /// Returns what was used since `self`.
    pub(super) fn until_now(&self) -> Result<Self, String> {
        let now = Self::so_far()?;
        Ok(Self {
            cpu: now.cpu.saturating_sub(self.cpu),
            minor_faults: now.minor_faults.saturating_sub(self.minor_faults),
        })
    }
}
