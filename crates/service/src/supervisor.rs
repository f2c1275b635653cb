//! The life of a service that another program starts: `packhorse serve` starts gateway and agent, and neither shall outlive it.

use std::{future::pending, io, thread};

use clap::Args;
use tokio::sync::oneshot;

/// The flag of a service that another program starts.
#[derive(Clone, Copy, Debug, Args)]
pub struct SupervisorOptions {
    /// End, as after SIGTERM, when standard input is closed: the program that starts this one holds its other end.
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

/// The program that has started this one, if it says so. A pipe tells of its end even after SIGKILL, and without a race at the start.
#[derive(Debug)]
pub struct Supervisor(Option<oneshot::Receiver<()>>);

impl SupervisorOptions {
    /// Watches standard input from now on, if the flag is given.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn watch(self) -> io::Result<Supervisor> {
        if !self.until_stdin_closes {
            return Ok(Supervisor(None));
        }
        let (sender, receiver) = oneshot::channel();
        // A thread of its own: the runtime would wait at its end for a read that it has begun.
        thread::Builder::new()
            .name("supervisor".to_owned())
            .spawn(move || {
                // An error is the end of the pipe, too.
                let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
                let _ = sender.send(());
            })?;
        Ok(Supervisor(Some(receiver)))
    }
}

impl Supervisor {
    /// Waits until the supervisor has ended. Returns at most once, and never if there is none.
    pub async fn gone(&mut self) {
        match &mut self.0 {
            Some(end) => {
                let _ = end.await;
                self.0 = None;
            }
            None => pending().await,
        }
    }
}
