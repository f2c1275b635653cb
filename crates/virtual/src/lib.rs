//! A cluster in virtual time: one struct for the simulator, for random histories and for the scenarios of the control plane.
//!
//! The parts that decide are real: the [`Controller`](packhorse_control::Controller), the agents' [`Reconciler`](packhorse_reconcile::Reconciler), the
//! [`Links`](packhorse_links::Links) and the [`Engine`](packhorse_serving::Engine). What is slow or breaks is simulated: the network, the store, worker
//! processes, devices, clients and the clock. Everything random comes from one seed, so that the same settings give the same run.
//!
//! A [`Cluster`] without delays and faults is the simulator. With delays, cuts, kills and full disks it is the machine under test. Debug builds
//! check the invariants of both planes.

mod agents;
mod clients;
mod cluster;
mod counted_traffic;
mod data_plane;
mod drive;
mod environment;
mod events;
mod faults;
mod gateway;
mod invariants;
mod network;
mod node;
mod nodes;
mod numbered_queue;
mod random;
mod requests;
mod settings;
mod shelf;
mod store;
mod transport;
mod weights;

pub use clients::{Arrivals, ClientState, Clients, End};
pub use cluster::Cluster;
pub use counted_traffic::CountedTraffic;
pub use environment::{
    AnsweredBatch, AnsweredRequest, EndedRequest, Environment, LostBatch, SentBatch,
};
pub use gateway::{Gateway, Served};
pub use invariants::Invariants;
pub use node::{LIMITS, LoadFailure, Node, Process, Times, WorkerBehaviour, profile_csv};
pub use nodes::Nodes;
pub use random::Random;
pub use settings::{Disk, Jitter, LinkTimes, Settings};
pub use store::Store;
