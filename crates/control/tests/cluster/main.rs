//! A whole cluster in virtual time, around the control plane: its faults, and random histories.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]
#![expect(clippy::print_stdout, reason = "the trace of a history")]

mod backbones;
mod claims;
mod clients;
mod data_plane;
mod drains;
mod estimates;
mod families;
mod histories;
mod invariants;
mod leases;
mod machine;
mod network;
mod plans;
mod random;
mod requests;
mod restarts;
mod service_classes;
mod solver;
mod store;
mod virtual_cluster;
