//! Values that may be said to be unknown.

use serde::{Deserialize, Serialize};

/// A value, or the text `unknown` for a value that nobody knows. An absent key has a default in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or \"unknown\"")]
pub enum OrUnknown<T> {
    /// The value.
    Known(T),
    /// No value.
    Unknown(Unknown),
}

/// The text `unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unknown {
    /// The only value.
    Unknown,
}

impl<T> OrUnknown<T> {
    /// Returns the value; `None` if it is unknown.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(Unknown::Unknown) => None,
        }
    }
}

impl<T> From<Option<T>> for OrUnknown<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unknown(Unknown::Unknown), Self::Known)
    }
}
