//! The scenario file, which describes devices, models and load for planning and simulation.
//!
//! [`ScenarioFile`] has its keys, as TOML spells them. [`export_toml`] writes the file of what a gateway plans with, so that a plan for the
//! file is the plan of the gateway. The simulator reads files and checks them.

mod export;
mod file;
mod observations;

pub use export::{ExportError, export, export_toml};
pub use file::{
    ArrivalsEntry, AutoscaleEntry, BackboneEntry, BackboneMemberEntry, DeviceGroup, FamilyEntry,
    FaultEntry, FaultKindEntry, Kept, LearnedEntry, Links, ModelEntry, OrUnknown, PoolEntry, Pools,
    ReplicaEntry, ScenarioFile, ShareEntry, SimulationEntry, Unknown, VariantEntry,
};
pub use observations::{ObservationsError, observations_from_csv, observations_to_csv};
