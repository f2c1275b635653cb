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
    /// Shepherd's batches: of all models of a device the largest batch goes first, and stops a much smaller one. In the simulator only.
    Flex,
    /// The same without stopping batches. In the simulator only.
    FlexNp,
    /// Clockwork: batches and loads of weights are scheduled centrally and ahead of time. In the simulator only.
    Clockwork,
}

/// A text that names no discipline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown discipline {given:?}: expected one of {}", Discipline::ALL.map(Discipline::as_str).join(", "))]
pub struct UnknownDiscipline {
    given: String,
}

/// A discipline that only the simulator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the discipline {0} runs in the simulator only: expected one of {live}",
    live = Discipline::LIVE.map(Discipline::as_str).join(", ")
)]
pub struct NotLive(pub Discipline);

impl Discipline {
    /// All disciplines.
    pub const ALL: [Self; 8] = [
        Self::Deadline,
        Self::FixedWait,
        Self::Symphony,
        Self::Accscale,
        Self::Aimd,
        Self::Flex,
        Self::FlexNp,
        Self::Clockwork,
    ];

    /// The disciplines of the serving engine, which the gateway has, too.
    pub const LIVE: [Self; 5] = [
        Self::Deadline,
        Self::FixedWait,
        Self::Symphony,
        Self::Accscale,
        Self::Aimd,
    ];

    /// Returns true if the serving engine has the discipline. The others decide for all models of a device together, in the simulator only.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Deadline | Self::FixedWait | Self::Symphony | Self::Accscale | Self::Aimd => true,
            Self::Flex | Self::FlexNp | Self::Clockwork => false,
        }
    }

    /// Returns the discipline if the gateway has it.
    ///
    /// # Errors
    /// Returns an error that names those that it has.
    pub fn live(self) -> Result<Self, NotLive> {
        if self.is_live() {
            Ok(self)
        } else {
            Err(NotLive(self))
        }
    }

    /// Returns the name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::FixedWait => "fixed-wait",
            Self::Symphony => "symphony",
            Self::Accscale => "accscale",
            Self::Aimd => "aimd",
            Self::Flex => "flex",
            Self::FlexNp => "flex-np",
            Self::Clockwork => "clockwork",
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
