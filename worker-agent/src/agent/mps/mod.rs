//! NVIDIA's Multi-Process Service: what lets replicas compute on one GPU at the same time, each with its share of the multiprocessors.
//!
//! One control daemon per GPU, because a server that fails takes the clients of all its GPUs with it. A [`Supervisor`] starts it,
//! or adopts that of an earlier agent, and watches it; daemons outlive the agent, as workers do. Where there is no MPS, or it does
//! not come up, the GPU's replicas take turns, without shares, and the agent says so. Clocks, compute mode and MIG stay as they are.
//!
//! Source: NVIDIA, "Multi-Process Service", chapters "Architecture" and "Tools and Interface Reference".

mod control;
mod supervisor;

use std::{collections::BTreeMap, ffi::OsString, io, path::Path};

use packhorse_control::reconcile::Event;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::devices::{Backend, Device};
use control::Control;
use supervisor::{Pace, Supervisor};

/// The most clients of one GPU: what drivers up to CUDA 13.0 allow, later ones a few more.
pub(super) const MAX_CLIENTS: usize = 48;

/// How the replicas of a GPU share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Not decided yet: the daemon is being started.
    Starting,
    /// They compute at the same time.
    Mps,
    /// They take turns; with the reason, for people.
    TimeSliced(String),
}

/// MPS on one GPU.
#[derive(Clone, Debug)]
pub(super) struct MpsDevice {
    control: Control,
    sharing: watch::Sender<Sharing>,
}

/// MPS on this node. GPUs that are not in here take turns.
#[derive(Debug, Default)]
pub(super) struct Mps {
    devices: BTreeMap<String, MpsDevice>,
    supervisors: JoinSet<()>,
}

impl Mps {
    /// Starts a daemon for every GPU, with its folders under `root`, and waits until it is clear which of them have MPS. From then on
    /// `events` is told of those that fail and recover.
    pub(super) async fn start(
        program: &Path,
        devices: &[Device],
        root: &Path,
        events: &mpsc::Sender<Event>,
    ) -> Self {
        let mut mps = Self::default();
        for device in devices
            .iter()
            .filter(|device| device.backend == Backend::Cuda)
        {
            match Control::new(program, &device.name, root) {
                Ok(control) => mps.supervise(&device.name, control, Pace::default(), events),
                Err(e) => {
                    tracing::warn!(device = device.name, error = %e, "no folder for MPS: replicas take turns on the GPU");
                }
            }
        }
        for device in mps.devices.values() {
            let mut sharing = device.sharing.subscribe();
            // The sender is in the map.
            let _ = sharing
                .wait_for(|sharing| *sharing != Sharing::Starting)
                .await;
        }
        mps
    }

    fn supervise(
        &mut self,
        device: &str,
        control: Control,
        pace: Pace,
        events: &mpsc::Sender<Event>,
    ) {
        let sharing = watch::Sender::new(Sharing::Starting);
        let supervisor = Supervisor::new(
            device.to_owned(),
            control.clone(),
            pace,
            sharing.clone(),
            events.clone(),
        );
        self.supervisors.spawn(supervisor.run());
        self.devices
            .insert(device.to_owned(), MpsDevice { control, sharing });
    }

    /// How every GPU is shared, now and later.
    pub(super) fn sharing(&self) -> BTreeMap<String, watch::Receiver<Sharing>> {
        let of = |(name, device): (&String, &MpsDevice)| (name.clone(), device.sharing.subscribe());
        self.devices.iter().map(of).collect()
    }

    /// MPS on a GPU; `None` where there is none at the moment, and its replicas take turns.
    pub(super) fn device(&self, name: &str) -> Option<&MpsDevice> {
        let device = self.devices.get(name)?;
        (*device.sharing.borrow() == Sharing::Mps).then_some(device)
    }

    /// Ends the daemons. Their clients have ended before.
    pub(super) async fn quit(mut self) {
        self.supervisors.shutdown().await;
        for (device, of) in &self.devices {
            if *of.sharing.borrow() != Sharing::Mps {
                continue;
            }
            if let Err(e) = of.control.quit().await {
                tracing::warn!(device, error = %e, "the MPS daemon was not ended");
            }
        }
    }
}

impl MpsDevice {
    /// What makes a worker a client.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 2] {
        self.control.environment()
    }

    /// Detaches a client from the server, so that it can be killed: a client that dies with work on the GPU may take the server
    /// with it. One that is none any more, or a server that does not answer, needs no detaching.
    pub(super) async fn detach(&self, pid: u32) {
        if let Err(e) = self.control.terminate_client(pid).await {
            tracing::debug!(pid, error = %e, "MPS client not detached");
        }
    }

    /// Checks that a worker that uses the GPU is a client: CUDA goes without MPS silently when it cannot reach the daemon.
    pub(super) async fn check(&self, pid: u32) {
        // Process numbers may be those of another namespace, but no client at all means the same everywhere.
        if let Ok(0) = self.control.client_count().await {
            let reason = format!("CUDA does not use MPS in worker {pid}");
            tracing::warn!(pid, "{reason}: replicas take turns on the GPU");
            self.sharing.send_replace(Sharing::TimeSliced(reason));
        }
    }
}

/// The folder of one device: short, for the daemon's sockets are in it.
fn folder_name(device: &str) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(&Sha256::digest(device)[..4])
}

fn private_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}
