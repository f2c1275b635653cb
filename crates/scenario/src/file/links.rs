//! The links of a scenario.

use serde::{Deserialize, Serialize};

/// The way in which the batches that are sent to one device share its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Links {
    /// Every batch is transmitted as if it were alone, as the thesis assumes.
    #[default]
    Instant,
    /// A batch is transmitted once those before it are: the link is a queue with the network's bandwidth.
    Queue,
}
