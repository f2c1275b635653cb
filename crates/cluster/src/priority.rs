//! The priority of a model.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The priority of a model, from 0 to 9: where devices do not suffice for all models, those of a higher priority are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Priority(u8);

/// The error for a number that is no priority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a priority from 0 to {}, got {given}", Priority::HIGHEST.0)]
pub struct PriorityError {
    given: String,
}

impl Priority {
    /// The highest priority.
    pub const HIGHEST: Self = Self(9);

    /// Creates a priority.
    ///
    /// # Errors
    /// If the number is above 9.
    pub fn new(priority: u32) -> Result<Self, PriorityError> {
        let number = u8::try_from(priority).ok().map(Self);
        let number = number.filter(|number| *number <= Self::HIGHEST);
        number.ok_or_else(|| PriorityError {
            given: priority.to_string(),
        })
    }
}

impl Default for Priority {
    /// Returns the priority of a model for which none is given: 5.
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u32> for Priority {
    type Error = PriorityError;

    fn try_from(priority: u32) -> Result<Self, PriorityError> {
        Self::new(priority)
    }
}

impl From<Priority> for u32 {
    fn from(priority: Priority) -> Self {
        priority.0.into()
    }
}

impl FromStr for Priority {
    type Err = PriorityError;

    fn from_str(text: &str) -> Result<Self, PriorityError> {
        let number = text.parse::<u32>().map_err(|_| PriorityError {
            given: format!("{:?}", text.chars().take(64).collect::<String>()),
        })?;
        Self::new(number)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_0_to_9_and_5_by_default() {
        assert_eq!(Priority::default().to_string(), "5");
        for number in 0..=9 {
            let priority = Priority::new(number).unwrap();
            assert_eq!(priority.to_string().parse(), Ok(priority));
            assert_eq!(
                serde_json::to_string(&priority).unwrap(),
                number.to_string()
            );
        }
        assert!(serde_json::from_str::<Priority>("10").is_err());
        assert!(serde_json::from_str::<Priority>("-1").is_err());
        let error = "10".parse::<Priority>().unwrap_err().to_string();
        assert_eq!(error, "expected a priority from 0 to 9, got 10");
        let error = "high".parse::<Priority>().unwrap_err().to_string();
        assert_eq!(error, "expected a priority from 0 to 9, got \"high\"");
    }
}
