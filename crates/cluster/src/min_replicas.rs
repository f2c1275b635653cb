//! The least number of devices that a model has replicas on.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The least number of different devices that a model has replicas on, from 1 to 16: with two, a device may fail and the model answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct MinReplicas(u8);

/// The error for a number of replicas that no model can ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of replicas from 1 to {}, got {given}", MinReplicas::MOST.0)]
pub struct MinReplicasError {
    given: String,
}

impl MinReplicas {
    /// The largest number: no member of a pool is on more devices.
    pub const MOST: Self = Self(16);

    /// Creates a number of replicas.
    ///
    /// # Errors
    /// If the number is 0 or above 16.
    pub fn new(number: u32) -> Result<Self, MinReplicasError> {
        let small = u8::try_from(number).ok().map(Self);
        let small = small.filter(|small| (Self::default()..=Self::MOST).contains(small));
        small.ok_or_else(|| MinReplicasError {
            given: number.to_string(),
        })
    }

    /// Returns the number.
    pub fn get(self) -> usize {
        self.0.into()
    }
}

impl Default for MinReplicas {
    /// Returns the number for which a model need not ask: 1, its home.
    fn default() -> Self {
        Self(1)
    }
}

impl TryFrom<u32> for MinReplicas {
    type Error = MinReplicasError;

    fn try_from(number: u32) -> Result<Self, MinReplicasError> {
        Self::new(number)
    }
}

impl From<MinReplicas> for u32 {
    fn from(number: MinReplicas) -> Self {
        number.0.into()
    }
}

impl FromStr for MinReplicas {
    type Err = MinReplicasError;

    fn from_str(text: &str) -> Result<Self, MinReplicasError> {
        let number = text.parse::<u32>().map_err(|_| MinReplicasError {
            given: format!("{:?}", text.chars().take(64).collect::<String>()),
        })?;
        Self::new(number)
    }
}

impl fmt::Display for MinReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_1_to_16_replicas_and_1_by_default() {
        assert_eq!(MinReplicas::default().get(), 1);
        for number in 1..=16 {
            let replicas = MinReplicas::new(number).unwrap();
            assert_eq!(replicas.to_string().parse(), Ok(replicas));
            let json = serde_json::to_string(&replicas).unwrap();
            assert_eq!(json, number.to_string());
        }
        for wrong in ["0", "17", "-1", "1.5", "\"2\""] {
            assert!(
                serde_json::from_str::<MinReplicas>(wrong).is_err(),
                "{wrong}"
            );
        }
        let error = "17".parse::<MinReplicas>().unwrap_err().to_string();
        assert_eq!(error, "expected a number of replicas from 1 to 16, got 17");
        let error = "two".parse::<MinReplicas>().unwrap_err().to_string();
        assert_eq!(
            error,
            "expected a number of replicas from 1 to 16, got \"two\""
        );
    }
}
