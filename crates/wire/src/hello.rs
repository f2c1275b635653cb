//! The hello of each side when a connection begins: the versions that it speaks, the features that it has, its nonce.
//!
//! The bytes of a [`Hello`] never change, so that any two versions can find out what they have in common.

use std::fmt;

use crate::{codec::Reader, error::DecodeError, identity::Nonce};

/// The versions of the protocol that a side speaks: all from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest version.
    pub first: u8,
    /// The newest version.
    pub last: u8,
}

impl VersionRange {
    /// The versions that this build speaks. Version 1 had no range in its hello, and is not spoken any more.
    pub const SUPPORTED: Self = Self { first: 2, last: 2 };

    /// Returns the highest version that both sides speak; none if they have none in common.
    pub fn highest_common(self, other: Self) -> Option<u8> {
        let last = self.last.min(other.last);
        (last >= self.first.max(other.first)).then_some(last)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.last)
        } else {
            write!(f, "{} to {}", self.first, self.last)
        }
    }
}

/// A set of optional abilities of a side, one bit each. A connection uses those that both sides have; unknown bits do no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// No feature.
    pub const NONE: Self = Self(0);
    /// Payloads lie in memory that both sides share, and messages travel through pipes. For connections by which descriptors can be passed.
    /// Bit 0 was the same with messages on the connection, and is not used any more.
    pub const SHARED_MEMORY: Self = Self(1 << 1);
    /// The gateway says when the program's weights are copied to the device, and when they leave it.
    pub const RESIDENCY: Self = Self(1 << 2);

    /// Returns the features that both sets contain.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the features of both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if this set contains all features of the other.
    pub fn contains(self, other: Self) -> bool {
        self.common(other) == other
    }
}

/// A side's description of itself when a connection begins. Both sides' hellos are under both sides' proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions that the side speaks.
    pub versions: VersionRange,
    /// The features that the side has.
    pub features: Features,
    /// The side's fresh nonce.
    pub nonce: Nonce,
}

/// The common part of two sides' hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The version of the protocol that the connection uses.
    pub version: u8,
    /// The features that the connection may use.
    pub features: Features,
}

impl Hello {
    /// Creates the hello of this build, with the features that this connection may have; `nonce` is fresh from the system's generator.
    pub fn new(features: Features, nonce: Nonce) -> Self {
        Self {
            versions: VersionRange::SUPPORTED,
            features,
            nonce,
        }
    }

    /// Returns what this side has in common with the other; none if that is no version.
    pub(crate) fn agree(&self, other: &Self) -> Option<Agreement> {
        Some(Agreement {
            version: self.versions.highest_common(other.versions)?,
            features: self.features.common(other.features),
        })
    }

    /// Appends the hello. The handshake's proofs are computed over these bytes, too.
    pub(crate) fn encode_metadata(&self, out: &mut Vec<u8>) {
        out.push(self.versions.first);
        out.push(self.versions.last);
        out.extend_from_slice(&self.features.0.to_le_bytes());
        out.extend_from_slice(&self.nonce);
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            versions: VersionRange {
                first: reader.u8()?,
                last: reader.u8()?,
            },
            features: Features(reader.u32()?),
            nonce: reader.array()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn range(first: u8, last: u8) -> VersionRange {
        VersionRange { first, last }
    }

    proptest! {
        #[test]
        fn the_highest_common_version_is_the_largest_that_both_speak(
            first in 0_u8..6, last in 0_u8..6, other_first in 0_u8..6, other_last in 0_u8..6,
        ) {
            let (one, other) = (range(first, last), range(other_first, other_last));
            let speaks = |range: VersionRange, version| (range.first..=range.last).contains(&version);
            let expected = (0..=u8::MAX).rev().find(|version| speaks(one, *version) && speaks(other, *version));
            prop_assert_eq!(one.highest_common(other), expected);
            prop_assert_eq!(other.highest_common(one), expected);
        }
    }

    #[test]
    fn features_that_one_side_lacks_are_not_used() {
        let common = Features(0b0110).common(Features(0b1010));
        assert_eq!(common, Features(0b0010));
        assert!(Features(0b0110).contains(common));
        assert!(!common.contains(Features(0b0110)));
    }
}
