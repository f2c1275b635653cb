//! The settings of a cluster: what its parts decide with, and how long they take.

use std::time::Duration;

use packhorse_cluster::{NetworkModel, Time};
use packhorse_contention::Interference;
use packhorse_control::Config;
use packhorse_reconcile::Limits;
use packhorse_serving::EngineConfig;

use crate::node::{LIMITS, Times};

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings of the controller.
    pub config: Config,
    /// The settings of the engine.
    pub engine: EngineConfig,
    /// The most bytes of a shared batch.
    pub max_batch_bytes: u64,
    /// The rates of replicas that are active on one device at the same time.
    pub interference: Interference,
    /// The random part of batch times.
    pub jitter: Jitter,
    /// The times of the links to devices.
    pub links: LinkTimes,
    /// The time of a write.
    pub store_delay: Duration,
    /// The time of a call of the policy.
    pub solve_delay: Duration,
    /// The time until an agent that was refused or not answered asks again.
    pub retry: Duration,
    /// The time limits of workers.
    pub limits: Limits,
    /// The time that agents and workers take for what they do.
    pub times: Times,
    /// The memory of nodes for weights that are not on a device, and the way from their disks; `None` where all have room in memory.
    pub disk: Option<Disk>,
    /// The time to make a connection to a worker.
    pub connect: Duration,
    /// The time after which a connection is tried again.
    pub reconnect: Duration,
    /// The time after which a connection is given up over which nothing comes back.
    pub unacknowledged: Duration,
    /// The time after which a worker is given up that does not answer a batch.
    pub batch_limit: Option<Duration>,
    /// The part of the clients that hang up before their answer, and the longest time until they do.
    pub impatient: (f64, Duration),
    /// True if clients send again what a gateway that has died did not answer, until the deadline.
    pub resends: bool,
    /// The seed of everything that is random.
    pub seed: u64,
}

impl Settings {
    /// Returns the settings of a cluster whose parts take as long as those of a real one.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            engine: EngineConfig::default(),
            max_batch_bytes: 64 << 20,
            interference: Interference::default(),
            jitter: Jitter::None,
            links: LinkTimes::default(),
            store_delay: Duration::from_millis(5),
            solve_delay: Duration::from_millis(20),
            retry: Duration::from_millis(500),
            limits: LIMITS,
            times: Times::default(),
            disk: None,
            connect: Duration::from_millis(5),
            reconnect: Duration::from_millis(250),
            unacknowledged: Duration::from_secs(5),
            batch_limit: Some(Duration::from_secs(15)),
            impatient: (0.0, Duration::ZERO),
            resends: false,
            seed: 0,
        }
    }

    /// Returns these settings without the time that stores, policies, agents and messages take. What failed is tried again a millisecond later.
    #[must_use]
    pub fn without_delays(self) -> Self {
        Self {
            store_delay: Duration::ZERO,
            solve_delay: Duration::ZERO,
            times: Times {
                message: Duration::ZERO,
                fetch: Duration::ZERO,
                termination: Duration::ZERO,
                ..self.times
            },
            connect: Duration::ZERO,
            retry: Duration::from_millis(1),
            reconnect: Duration::from_millis(1),
            ..self
        }
    }
}

/// The memory of a node for the weights of each of its devices that are not there, and its disk, from which the others are read.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// The bytes in memory.
    pub host_memory: u64,
    /// The time to read a model.
    pub load: Duration,
}

/// The random part of batch times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// None: each batch takes the expected time.
    None,
    /// Up to this part of the expected time is added.
    UpTo(f64),
    /// The times are exponential, and the expected one is their mean.
    Exponential,
}

/// The times of the links from the gateway to devices, one each.
#[derive(Clone, Copy, Debug)]
pub struct LinkTimes {
    /// The time of handing a batch over, before the network.
    pub router_overhead: Duration,
    /// The network from the gateway to a worker.
    pub network: NetworkModel,
    /// True if a batch is transmitted once those before it are, false if every batch is transmitted as if it were alone.
    pub queues: bool,
    /// The time from a worker to the client.
    pub return_time: Duration,
}

impl Default for LinkTimes {
    /// Returns links that take no time but the messages' own.
    fn default() -> Self {
        Self {
            router_overhead: Duration::ZERO,
            network: NetworkModel {
                base: Duration::ZERO,
                bytes_per_second: f64::INFINITY,
            },
            queues: true,
            return_time: Duration::ZERO,
        }
    }
}

impl LinkTimes {
    /// Returns the time at which so many bytes, sent now, are at the device. `free` is the time at which its link has transmitted what was handed
    /// to it before.
    pub fn send(&self, now: Time, free: &mut Time, bytes: f64) -> Time {
        let handed_over = now + self.router_overhead;
        let begin = if self.queues {
            handed_over.max(*free)
        } else {
            handed_over
        };
        let seconds = bytes / self.network.bytes_per_second;
        *free = begin + Duration::from_secs_f64(seconds);
        *free + self.network.base
    }
}
