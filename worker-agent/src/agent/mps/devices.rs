//! The GPUs of the node that have an MPS daemon.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use packhorse_cluster::{ByteCount, ComputeShare};
use packhorse_reconcile::Event;
use packhorse_worker_agent::devices::{Backend, Device};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    control::Control,
    failure::MpsFailure,
    sharing::GpuSharing,
    supervisor::{Supervisor, SupervisorTimes},
};
use crate::worker_user::WorkerUser;

/// The most MPS clients of one GPU: the limit of drivers up to CUDA 13.0. Later ones allow a few more.
pub(crate) const MAX_CLIENTS: usize = 48;

/// The memory that a process occupies on a GPU before it allocates any: the CUDA context and the code of libtorch's kernels.
const CONTEXT: ByteCount = ByteCount::new(1 << 30);

/// The MPS daemons of this node. On a GPU without one, replicas are time-sliced.
#[derive(Debug, Default)]
pub(crate) struct Mps {
    devices: BTreeMap<String, MpsDevice>,
    supervisors: JoinSet<()>,
}

/// MPS on one GPU.
#[derive(Clone, Debug)]
pub(crate) struct MpsDevice {
    control: Control,
    sharing: watch::Sender<GpuSharing>,
}

impl Mps {
    /// Starts a daemon for every GPU, as the workers' user and with its folders under `root`, and waits until each of them runs or has failed. From then on
    /// `events` receives their failures and recoveries.
    pub(crate) async fn start(
        program: &Path,
        devices: &[Device],
        root: &Path,
        user: &WorkerUser,
        events: &mpsc::Sender<Event>,
    ) -> Self {
        let mut mps = Self::default();
        for device in devices
            .iter()
            .filter(|device| device.backend == Backend::Cuda)
        {
            match Control::new(program, &device.name, root, user) {
                Ok(control) => {
                    mps.supervise(&device.name, control, SupervisorTimes::default(), events);
                }
                Err(e) => {
                    tracing::warn!(device = device.name, error = %e, "no folder for MPS: replicas time-slice the GPU");
                }
            }
        }
        for device in mps.devices.values() {
            let mut sharing = device.sharing.subscribe();
            // The sender is in the map, so that the channel is open.
            let _ = sharing
                .wait_for(|sharing| *sharing != GpuSharing::Starting)
                .await;
        }
        mps
    }

    fn supervise(
        &mut self,
        device: &str,
        control: Control,
        times: SupervisorTimes,
        events: &mpsc::Sender<Event>,
    ) {
        let sharing = watch::Sender::new(GpuSharing::Starting);
        let supervisor = Supervisor::new(
            device.to_owned(),
            control.clone(),
            times,
            sharing.clone(),
            events.clone(),
        );
        self.supervisors.spawn(supervisor.run());
        self.devices
            .insert(device.to_owned(), MpsDevice { control, sharing });
    }

    /// Returns a receiver of the sharing of every GPU.
    pub(crate) fn subscribe(&self) -> BTreeMap<String, watch::Receiver<GpuSharing>> {
        let devices = self.devices.iter();
        devices
            .map(|(name, device)| (name.clone(), device.sharing.subscribe()))
            .collect()
    }

    /// Returns MPS on a GPU; `None` if the GPU has no MPS at the moment.
    pub(crate) fn device(&self, name: &str) -> Option<&MpsDevice> {
        let device = self.devices.get(name)?;
        (*device.sharing.borrow() == GpuSharing::Mps).then_some(device)
    }

    /// Ends all daemons, including those that CUDA does not use. Their clients must have ended.
    pub(crate) async fn quit(mut self) {
        self.supervisors.shutdown().await;
        for (name, device) in &self.devices {
            let Err(e) = device.control.quit().await else {
                continue;
            };
            if *device.sharing.borrow() == GpuSharing::Mps {
                tracing::warn!(device = name, error = %e, "MPS daemon not ended");
            } else {
                tracing::debug!(device = name, error = %e, "no MPS daemon to end");
            }
        }
    }
}

impl MpsDevice {
    /// Returns the environment of a client: the daemon's folders, and a memory limit if the worker's memory is known.
    pub(crate) fn environment(&self, memory: Option<ByteCount>) -> Vec<(&'static str, OsString)> {
        let mut environment = self.control.environment().to_vec();
        // The daemon serves a single GPU, whose index is therefore 0.
        environment.extend(memory.map(|memory| {
            let limit = format!("0={}M", memory_limit_mib(memory));
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit.into())
        }));
        environment
    }

    /// Detaches a client from the server before it is killed: a client that dies with work on the GPU may take the server with it. A
    /// failure means that the process is no client, or that the server does not answer; then there is nothing to detach.
    pub(crate) async fn detach(&self, pid: u32) {
        if let Err(e) = self.control.terminate_client(pid).await {
            tracing::debug!(pid, error = %e, "MPS client not detached");
        }
    }

    /// Checks that a worker that uses the GPU is a client: CUDA silently does without MPS if it cannot reach the daemon.
    pub(crate) async fn check(&self, pid: u32, observed: ObservedShare) {
        // The daemon may see other process ids, in another namespace, but the absence of clients is unambiguous.
        let no_clients = matches!(self.control.client_count().await, Ok(0));
        let failure = if no_clients {
            MpsFailure::NoClients { pid }
        } else if let Some(failure) = observed.failure(pid) {
            failure
        } else {
            return;
        };
        tracing::warn!(pid, "{failure}: replicas time-slice the GPU");
        self.sharing.send_replace(GpuSharing::TimeSliced(failure));
    }
}

/// A worker's compute share, and its effect as the worker observes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedShare {
    /// The worker's compute share.
    pub(crate) share: Option<ComputeShare>,
    /// The number of multiprocessors of the GPU.
    pub(crate) multiprocessors: Option<u32>,
    /// The number of multiprocessors that the worker may use, as CUDA reports it to the worker.
    pub(crate) usable: Option<u32>,
}

impl ObservedShare {
    /// Returns a failure if the share has no effect. The hardware rounds a share, usually to two multiprocessors, so that only a share
    /// that certainly excludes some multiprocessors is conclusive.
    fn failure(&self, pid: u32) -> Option<MpsFailure> {
        let (share, multiprocessors, usable) = (self.share?, self.multiprocessors?, self.usable?);
        let all = f64::from(multiprocessors);
        let excludes_some = all * share.get() / 100.0 + 2.0 < all;
        (excludes_some && usable >= multiprocessors).then_some(MpsFailure::ShareIgnored {
            pid,
            share,
            multiprocessors,
        })
    }
}

/// Returns the memory limit of a client whose profile says that it needs `needed` bytes. The allocator's fragmentation and a second
/// batch in flight may take a quarter more. Memory that CUDA itself occupies counts towards the limit, too.
fn memory_limit_mib(needed: ByteCount) -> u64 {
    let mib = 1 << 20;
    let (needed, context) = (needed.as_u64(), CONTEXT.as_u64());
    (needed.saturating_add(needed / 4).saturating_add(context)).div_ceil(mib)
}
