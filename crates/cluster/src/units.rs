//! Numbers with units. Constructors refuse NaN, infinities and negatives, so that arithmetic elsewhere need not check for them.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// The error for a number outside the range of its unit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{unit} must be {allowed}, not {value}")]
pub struct UnitError {
    /// The unit, in words.
    pub unit: &'static str,
    /// The allowed range, in words.
    pub allowed: &'static str,
    /// The given number.
    pub value: f64,
}

/// A point in time: nanoseconds since the process, or the simulation, started. Printable and replayable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the process or simulation.
    pub const ZERO: Self = Self(0);
    /// The largest time.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a time from nanoseconds since the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the seconds since the start.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the duration since `earlier`; zero if that is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time that was so long before this one, and [`Time::ZERO`] if it would be earlier.
    #[must_use]
    pub fn saturating_sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(time)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

/// Saturates at [`Time::ZERO`].
impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// An amount of memory or payload, in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteCount(u64);

/// The units of memory, as powers of two.
const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// Creates an amount from bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates an amount from mebibytes; `None` if that overflows.
    pub const fn from_mib(mib: u64) -> Option<Self> {
        match mib.checked_mul(1 << 20) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// Creates an amount from mebibytes, which may be fractional.
    pub fn try_from_mib_f64(mib: f64) -> Result<Self, UnitError> {
        if mib.is_finite() && (0.0..9e12).contains(&mib) {
            Ok(Self((mib * f64::from(1 << 20)).round() as u64))
        } else {
            Err(UnitError {
                unit: "memory in MiB",
                allowed: "finite and not negative",
                value: mib,
            })
        }
    }

    /// Returns the amount in bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the amount in mebibytes.
    pub fn as_mib_f64(self) -> f64 {
        self.0 as f64 / f64::from(1 << 20)
    }

    /// Returns the sum, at most `u64::MAX`.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A text that is no amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no amount of memory: expected a number of bytes, or one with KiB, MiB, GiB or TiB, such as 1.5GiB"
)]
pub struct ByteCountError(String);

impl FromStr for ByteCount {
    type Err = ByteCountError;

    fn from_str(text: &str) -> Result<Self, ByteCountError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
        let error = || ByteCountError(text.to_owned());
        let number: f64 = digits.parse().map_err(|_| error())?;
        let unit = text[digits.len()..].trim();
        let known = { UNITS.iter() }.find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let shift = match (known, unit) {
            (Some((_, shift)), _) => *shift,
            (None, "" | "B") => 0,
            (None, _) => return Err(error()),
        };
        let bytes = number * (1_u64 << shift) as f64;
        let allowed = (0.0..9e18).contains(&bytes);
        allowed
            .then(|| Self(bytes.round() as u64))
            .ok_or_else(error)
    }
}

impl std::iter::Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 >= 1 << shift {
                return write!(f, "{:.1} {unit}", self.0 as f64 / (1_u64 << shift) as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

macro_rules! bounded_f64 {
    ($(#[$doc:meta])* $name:ident, $unit:literal, $allowed:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Creates a value. A number outside the unit's range is an error.
            pub fn new(value: f64) -> Result<Self, UnitError> {
                let accepts: fn(f64) -> bool = $accepts;
                if accepts(value) {
                    // Adding zero turns -0 into 0, so that equal values print alike.
                    Ok(Self(value + 0.0))
                } else {
                    Err(UnitError { unit: $unit, allowed: $allowed, value })
                }
            }

            /// Returns the plain number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = UnitError;

            fn try_from(value: f64) -> Result<Self, UnitError> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

bounded_f64!(
    /// A rate of requests, in 1/s.
    RequestsPerSecond, "requests per second", "between 0 and 1e9", |v| (0.0..=1e9).contains(&v)
);

bounded_f64!(
    /// A part of a measured quantity, from 0 to 100 percent.
    Percent, "a percentage", "between 0 and 100", |v| (0.0..=100.0).contains(&v)
);

bounded_f64!(
    /// The share of a device's multiprocessors (or of a CPU's threads) that a replica may use, in percent, above 0.
    ComputeShare, "a compute share in percent", "above 0 and at most 100", |v| v > 0.0 && v <= 100.0
);

impl RequestsPerSecond {
    /// No requests.
    pub const ZERO: Self = Self(0.0);
    /// One request in each second.
    pub const ONE: Self = Self(1.0);
}

impl Percent {
    /// Creates a percentage, with numbers outside the range replaced by its nearest end. Panics if the number is NaN.
    pub fn clamped(value: f64) -> Self {
        Self::new(value.clamp(0.0, 100.0)).expect("clamped into the range")
    }
}

impl ComputeShare {
    /// The whole device.
    pub const WHOLE: Self = Self(100.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_refuse_numbers_outside_their_range() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            assert!(RequestsPerSecond::new(bad).is_err());
            assert!(ComputeShare::new(bad).is_err());
            assert!(Percent::new(bad).is_err());
            assert!(ByteCount::try_from_mib_f64(bad).is_err());
        }
        assert!(ComputeShare::new(0.0).is_err());
        assert!(ComputeShare::new(100.1).is_err());
        assert_eq!(RequestsPerSecond::new(-0.0).unwrap().to_string(), "0");
    }

    #[test]
    fn time_saturates_at_both_ends() {
        assert_eq!(Time::MAX + Duration::from_secs(1), Time::MAX);
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::from_nanos(1_500_000_000).to_string(), "1.500000000s");
    }

    #[test]
    fn amounts_of_memory_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<ByteCount>().map(ByteCount::as_u64);
        assert_eq!(read("1.5GiB"), Ok(3 << 29));
        assert_eq!(read("512 mib"), Ok(512 << 20));
        assert_eq!(read("4096"), Ok(4096));
        assert_eq!(read("7B"), Ok(7));
        for wrong in ["", "GiB", "1GB", "-1MiB", "1e30TiB", "nan", "1 2MiB"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("1.5GiB"), "{error}");
        }
    }

    #[test]
    fn bytes_print_in_the_largest_unit_that_fits() {
        assert_eq!(ByteCount::new(602_112).to_string(), "588.0 KiB");
        assert_eq!(ByteCount::from_mib(16_384).unwrap().to_string(), "16.0 GiB");
        assert_eq!(ByteCount::new(3).to_string(), "3 B");
    }
}
