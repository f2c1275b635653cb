//! A timer with the precision of the kernel's, microseconds; one of the runtime has a precision of a millisecond.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::{Errno, read},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::io::unix::AsyncFd;

/// A timer.
#[derive(Debug)]
pub(super) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// Creates a timer. It must be called within a runtime.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "an OwnedFd keeps its descriptor, which is what the successor makes its caller promise"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self(fd))
    }

    /// Waits for this long. A wait that is dropped has no effect on the next.
    pub(super) async fn wait(&self, duration: Duration) -> io::Result<()> {
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            // Zero would stop the timer.
            it_value: duration
                .max(Duration::from_nanos(1))
                .try_into()
                .map_err(io::Error::other)?,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec)?;
        loop {
            let mut ready = self.0.readable().await?;
            match read(&self.0, &mut [0_u8; 8]) {
                Ok(_) => return Ok(()),
                // Setting the timer has taken back the end of the former wait.
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
