//! The split of a model's requests over its versions.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::id::ModelVersion;

/// The shares of a model's versions in the requests that name no version, in percent. They sum to 100, and none is 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(
    try_from = "BTreeMap<ModelVersion, u32>",
    into = "BTreeMap<ModelVersion, u32>"
)]
pub struct Split {
    shares: BTreeMap<ModelVersion, u32>,
}

/// The reason why shares are no split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The shares do not sum to 100.
    #[error("the shares must sum to 100 %, got {0} %")]
    Sum(u64),
    /// There are too many versions.
    #[error("at most {} versions can have a share", Split::MAX_VERSIONS)]
    TooManyVersions,
}

/// The choice of a version for a request without one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Sticky {
    /// Every request is chosen for by itself.
    #[default]
    None,
    /// Requests with the same request id get the same version, as long as the shares do not change.
    RequestId,
}

/// A text that names no choice of versions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown sticky {0:?}: expected one of none, request-id")]
pub struct UnknownSticky(String);

impl Split {
    /// The most versions with a share: each has at least 1 %.
    pub const MAX_VERSIONS: usize = 100;

    /// Returns the split with these shares in percent. Shares of 0 are left out.
    ///
    /// # Errors
    /// If the shares do not sum to 100.
    pub fn new(shares: BTreeMap<ModelVersion, u32>) -> Result<Self, SplitError> {
        let sum: u64 = shares.values().copied().map(u64::from).sum();
        if sum != 100 {
            return Err(SplitError::Sum(sum));
        }
        let shares: BTreeMap<_, _> = shares.into_iter().filter(|(_, s)| *s > 0).collect();
        if shares.len() > Self::MAX_VERSIONS {
            return Err(SplitError::TooManyVersions);
        }
        Ok(Self { shares })
    }

    /// Returns the split that gives everything to one version.
    pub fn all_to(version: ModelVersion) -> Self {
        Self {
            shares: BTreeMap::from([(version, 100)]),
        }
    }

    /// Returns the share of a version, in percent.
    pub fn share(&self, version: ModelVersion) -> u32 {
        self.shares.get(&version).copied().unwrap_or(0)
    }

    /// Returns the versions with a share, ascending, and the shares in percent.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (ModelVersion, u32)> {
        self.shares
            .iter()
            .map(|(version, share)| (*version, *share))
    }

    /// Returns the version with the largest share, the older one of two.
    pub fn largest(&self) -> ModelVersion {
        let largest = self.iter().rev().max_by_key(|(_, share)| *share);
        largest.map_or(ModelVersion::FIRST, |(version, _)| version)
    }
}

impl TryFrom<BTreeMap<ModelVersion, u32>> for Split {
    type Error = SplitError;

    fn try_from(shares: BTreeMap<ModelVersion, u32>) -> Result<Self, SplitError> {
        Self::new(shares)
    }
}

impl From<Split> for BTreeMap<ModelVersion, u32> {
    fn from(split: Split) -> Self {
        split.shares
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (version, share)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}version {version}: {share} %")?;
        }
        Ok(())
    }
}

impl Sticky {
    /// Returns the name in the API and in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RequestId => "request-id",
        }
    }
}

impl FromStr for Sticky {
    type Err = UnknownSticky;

    fn from_str(text: &str) -> Result<Self, UnknownSticky> {
        [Self::None, Self::RequestId]
            .into_iter()
            .find(|sticky| sticky.as_str() == text)
            .ok_or_else(|| UnknownSticky(text.to_owned()))
    }
}

impl fmt::Display for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u32) -> ModelVersion {
        number.to_string().parse().unwrap()
    }

    #[test]
    fn shares_sum_to_100_and_zeros_are_left_out() {
        let split = |shares: &[(u32, u32)]| {
            Split::new(shares.iter().map(|(v, s)| (version(*v), *s)).collect())
        };
        let canary = split(&[(1, 90), (2, 10), (3, 0)]).unwrap();
        assert_eq!(canary.iter().count(), 2);
        assert_eq!(
            (canary.share(version(2)), canary.share(version(3))),
            (10, 0)
        );
        assert_eq!(canary.largest(), version(1));
        assert_eq!(split(&[(1, 50), (2, 50)]).unwrap().largest(), version(1));
        assert_eq!(canary.to_string(), "version 1: 90 %, version 2: 10 %");
        assert_eq!(split(&[(1, 90), (2, 11)]), Err(SplitError::Sum(101)));
        assert_eq!(split(&[]), Err(SplitError::Sum(0)));
        assert_eq!(
            split(&[(1, u32::MAX), (2, u32::MAX)])
                .unwrap_err()
                .to_string(),
            "the shares must sum to 100 %, got 8589934590 %"
        );
    }

    #[test]
    fn a_split_is_json_of_versions_and_percent() {
        let split: Split = serde_json::from_str(r#"{"1":90,"2":10}"#).unwrap();
        assert_eq!(serde_json::to_string(&split).unwrap(), r#"{"1":90,"2":10}"#);
        let error = serde_json::from_str::<Split>(r#"{"1":90}"#).unwrap_err();
        assert!(error.to_string().contains("sum to 100"), "{error}");
        for sticky in [Sticky::None, Sticky::RequestId] {
            assert_eq!(sticky.as_str().parse(), Ok(sticky));
        }
        assert_eq!(
            "ip".parse::<Sticky>().unwrap_err().to_string(),
            "unknown sticky \"ip\": expected one of none, request-id"
        );
    }
}
