//! SIGHUP, which a terminal sends when it closes, and by habit says to a service that its files have changed.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Has this process survive SIGHUP from now on. The programs that it starts are not affected.
///
/// # Errors
/// If the process cannot receive signals.
pub fn survive_hang_up() -> io::Result<()> {
    // Who waits for the signal may be gone: the process keeps the handler.
    signal(SignalKind::hangup()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_process_survives_a_hang_up() {
        survive_hang_up().unwrap();
        let kill = ["-HUP", &std::process::id().to_string()].map(str::to_owned);
        let sent = std::process::Command::new("kill").args(kill).status();
        assert!(sent.unwrap().success());
        // The signal has been delivered when this process, to which it was sent, goes on.
        tokio::task::yield_now().await;
    }
}
