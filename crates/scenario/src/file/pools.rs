//! The pools of a scenario's devices.

use serde::{Deserialize, Serialize};

/// Says if the devices of a scenario may have pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pools {
    /// Each replica has a worker process of its own.
    #[default]
    Off,
    /// A policy may have the models of a device share one.
    Auto,
}
