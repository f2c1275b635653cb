//! The Packhorse gateway: the inference protocol on one listener, the admin API on the other, cluster state in the store, and
//! the serving engine between clients and workers.

pub mod api;
pub mod app;
pub mod audit;
mod clock;
pub mod config;
pub mod controller;
mod descriptors;
pub mod driver;
pub mod events;
pub mod grafana;
pub mod health_check;
pub mod history;
mod input_memory;
pub mod ip_network;
pub mod keys;
mod memory;
mod prediction_cache;
mod printable;
pub mod serve;
mod sessions;
pub mod state_dir;
pub mod store;
pub mod store_command;
pub mod tasks;
pub mod telemetry;
mod tenant;
#[cfg(test)]
mod test_programs;
mod tokenizers;
pub mod wake_latency;
pub mod workers;
