//! The certificates of the listeners: looked at again and again, so that new ones are used without a restart.

use std::{io, sync::Arc, time::Duration};

use packhorse_tls::{Refresh, Reloaded, ServerTls};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{JoinHandle, spawn_blocking},
    time::{MissedTickBehavior, interval},
};

use crate::tasks::Tasks;

/// The time between two looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The certificate of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    /// The listener's name.
    pub(crate) listener: &'static str,
    /// The configuration with the certificate.
    pub(crate) tls: Arc<Reloaded<ServerTls>>,
}

/// Looks at the certificates' files every two seconds and on SIGHUP, in a task of its own. Open connections keep the certificate that
/// they began with.
///
/// # Errors
/// The process cannot receive the signal.
pub(crate) fn watch(certificates: Vec<Certificate>, tasks: &Tasks) -> io::Result<JoinHandle<()>> {
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(tasks.spawn("certificate watch", async move {
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = hang_up.recv() => {}
            }
            for certificate in certificates.clone() {
                // A panic would be reported by the runtime, and the next look is a new attempt.
                let _ = spawn_blocking(move || certificate.look()).await;
            }
        }
    }))
}

impl Certificate {
    fn look(&self) {
        let file = self.tls.paths()[0].display();
        match self.tls.refresh() {
            Refresh::Unchanged => {}
            Refresh::Replaced => {
                let expires_s = self.tls.get().expires_s;
                tracing::info!(%file, expires_s, "the certificate was replaced");
            }
            Refresh::Broken(error) => {
                tracing::error!(%file, %error, "the certificate cannot be replaced; the former one stays in use");
            }
        }
    }
}
