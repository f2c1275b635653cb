//! The dispatch disciplines, which form batches of waiting requests. They are named here because plans assume one; `serving` implements
//! them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The rule by which batches are formed of waiting requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Earliest deadline first, with late binding to free credits and early drop.
    #[default]
    Deadline,
    /// The thesis' router: a batch is sent when it is full or after a fixed time, replicas take turns, and no request is refused.
    FixedWait,
    /// Deferred batching: a batch waits until no further request could join it in time, and goes to the lowest-numbered idle device.
    Symphony,
    /// The same moment, and the next idle replica in turn: the batching of Proteus.
    Accscale,
    /// Clipper's batches: their size grows while they are answered within the objective, and shrinks by a tenth when one is late.
    Aimd,
}

/// A text that names no discipline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown discipline {given:?}: expected one of {}", Discipline::ALL.map(Discipline::as_str).join(", "))]
pub struct UnknownDiscipline {
    given: String,
}

impl Discipline {
    /// All disciplines.
    pub const ALL: [Self; 5] = [
        Self::Deadline,
        Self::FixedWait,
        Self::Symphony,
        Self::Accscale,
        Self::Aimd,
    ];

    /// Returns the name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::FixedWait => "fixed-wait",
            Self::Symphony => "symphony",
            Self::Accscale => "accscale",
            Self::Aimd => "aimd",
        }
    }
}

impl FromStr for Discipline {
    type Err = UnknownDiscipline;

    fn from_str(text: &str) -> Result<Self, UnknownDiscipline> {
        Self::ALL
            .into_iter()
            .find(|discipline| discipline.as_str() == text)
            .ok_or_else(|| UnknownDiscipline {
                given: text.chars().take(64).collect(),
            })
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
