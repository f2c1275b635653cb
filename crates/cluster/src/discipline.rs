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
}

/// A text that names no discipline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown discipline {given:?}: expected one of {}", Discipline::ALL.map(Discipline::as_str).join(", "))]
pub struct UnknownDiscipline {
    given: String,
}

impl Discipline {
    /// All disciplines.
    pub const ALL: [Self; 2] = [Self::Deadline, Self::FixedWait];

    /// Returns the name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::FixedWait => "fixed-wait",
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
