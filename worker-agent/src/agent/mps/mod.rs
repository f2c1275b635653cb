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

use packhorse_cluster::{ByteCount, ComputeShare};
use packhorse_reconcile::Event;
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

    /// Ends the daemons, also those that CUDA did not use. Their clients have ended before.
    pub(super) async fn quit(mut self) {
        self.supervisors.shutdown().await;
        for (device, of) in &self.devices {
            let Err(e) = of.control.quit().await else {
                continue;
            };
            if *of.sharing.borrow() == Sharing::Mps {
                tracing::warn!(device, error = %e, "the MPS daemon was not ended");
            } else {
                tracing::debug!(device, error = %e, "there is no MPS daemon to be ended");
            }
        }
    }
}

impl MpsDevice {
    /// What makes a worker a client that gets no more memory than it should need, where that is known.
    pub(super) fn environment(&self, memory: Option<ByteCount>) -> Vec<(&'static str, OsString)> {
        let mut environment = self.control.environment().to_vec();
        // The daemon serves one GPU, whose number is therefore 0.
        environment.extend(memory.map(|memory| {
            let limit = format!("0={}M", memory_limit_mib(memory));
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit.into())
        }));
        environment
    }

    /// Detaches a client from the server, so that it can be killed: a client that dies with work on the GPU may take the server
    /// with it. One that is none any more, or a server that does not answer, needs no detaching.
    pub(super) async fn detach(&self, pid: u32) {
        if let Err(e) = self.control.terminate_client(pid).await {
            tracing::debug!(pid, error = %e, "MPS client not detached");
        }
    }

    /// Checks that a worker that uses the GPU is a client: CUDA goes without MPS silently when it cannot reach the daemon.
    pub(super) async fn check(&self, pid: u32, seen: Seen) {
        // Process numbers may be those of another namespace, but no client at all means the same everywhere.
        let no_clients = matches!(self.control.client_count().await, Ok(0));
        let reason = if no_clients {
            format!("CUDA does not use MPS in worker {pid}")
        } else if let Some(ignored) = seen.ignored_share() {
            format!("worker {pid} {ignored}: CUDA does not use MPS there")
        } else {
            return;
        };
        tracing::warn!(pid, "{reason}: replicas take turns on the GPU");
        self.sharing.send_replace(Sharing::TimeSliced(reason));
    }
}

/// What a worker was given of its GPU and what it sees of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Its share.
    pub(super) share: Option<ComputeShare>,
    /// All multiprocessors of the GPU.
    pub(super) of: Option<u32>,
    /// Those that it may use, by its own account.
    pub(super) usable: Option<u32>,
}

impl Seen {
    /// What is wrong, if the share has no effect. A share is rounded to what the hardware can do, mostly two multiprocessors, so
    /// that only one that leaves some out for certain tells anything.
    fn ignored_share(&self) -> Option<String> {
        let (share, of, usable) = (self.share?.get(), self.of?, self.usable?);
        let given = f64::from(of) * share / 100.0;
        let ignored = given + 2.0 < f64::from(of) && usable >= of;
        ignored.then(|| format!("has a share of {share} % and may use all {of} multiprocessors"))
    }
}

/// What a process takes of a GPU's memory before it allocates anything: CUDA's context, and the code of libtorch's kernels.
const CONTEXT: ByteCount = ByteCount::new(1 << 30);

/// The limit for a client whose profile says that it needs `needed`, which the allocator's fragments and a second batch in flight may
/// exceed by a quarter. What CUDA itself takes counts towards the limit too.
fn memory_limit_mib(needed: ByteCount) -> u64 {
    let mib = 1 << 20;
    let (needed, context) = (needed.as_u64(), CONTEXT.as_u64());
    (needed.saturating_add(needed / 4).saturating_add(context)).div_ceil(mib)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_room_for_the_context_and_is_whole_mebibytes() {
        assert_eq!(memory_limit_mib(ByteCount::ZERO), 1024);
        assert_eq!(memory_limit_mib(ByteCount::new(4096 << 20)), 1024 + 5120);
        assert_eq!(memory_limit_mib(ByteCount::new(1)), 1025);
        assert_eq!(memory_limit_mib(ByteCount::new(u64::MAX)), 1 << 44);
    }

    #[test]
    fn a_share_is_ignored_where_all_multiprocessors_are_seen_in_spite_of_it() {
        let ignored = |share: f64, usable: Option<u32>| {
            let share = Some(ComputeShare::new(share).unwrap());
            let of = Some(132);
            Seen { share, of, usable }.ignored_share().is_some()
        };
        assert!(ignored(50.0, Some(132)));
        assert!(!ignored(50.0, Some(66)));
        assert!(!ignored(50.0, Some(64)));
        assert!(!ignored(100.0, Some(132)));
        assert!(!ignored(99.0, Some(132)));
        assert!(!ignored(50.0, None));
    }
}
