//! The control plane in a cluster in virtual time: its faults, and random histories.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod drains;
mod histories;
mod invariants;
mod leases;
mod machine;
mod plans;
mod restarts;
mod solver;
mod store;
mod virtual_cluster;
