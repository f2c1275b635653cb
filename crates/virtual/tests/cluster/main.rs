//! A whole cluster in virtual time, around the control plane: its faults, and random histories.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod backbones;
mod claims;
mod cold;
mod drains;
mod estimates;
mod exports;
mod families;
mod findings;
mod histories;
mod leases;
mod measurements;
mod plans;
mod priorities;
mod requests;
mod restarts;
mod service_classes;
mod solver;
mod versions;
mod virtual_cluster;
