//! Identifiers. They are parsed once, where they enter the program, and are valid from then on.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The error for a text that is not a valid identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {given:?} is not valid: {rule}")]
pub struct IdError {
    what: &'static str,
    rule: &'static str,
    given: String,
}

impl IdError {
    fn new(what: &'static str, rule: &'static str, given: &str) -> Self {
        // The text may come from a client: quote at most a short part of it.
        Self {
            what,
            rule,
            given: given.chars().take(140).collect(),
        }
    }
}

const NAME_RULE: &str =
    "expected 1 to 128 characters of A-Z a-z 0-9 . _ -, the first a letter or digit";

fn is_name(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

macro_rules! text_serde {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                if is_name(text) { Ok(Self(text.to_owned())) } else { Err(IdError::new($what, NAME_RULE, text)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        text_serde!($name);
    };
}

name!(
    /// The name a model is registered under: `^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`.
    ModelName, "model name"
);
name!(
    /// The name of a node, which is the machine that one agent manages.
    NodeName, "node name"
);
name!(
    /// The random identity of a gateway's store, by which an agent tells a restored store from another one.
    ClusterId, "cluster id"
);
name!(
    /// The kind of a device, for which profiles are measured: `V100-SXM2-16GB`, `H200`, `cpu-xeon-platinum-8481c`.
    DeviceKind, "device kind"
);

/// A version of a model: a positive number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ModelVersion(u32);

impl ModelVersion {
    /// The version of a registration that names none.
    pub const FIRST: Self = Self(1);
    /// The largest version.
    pub const LAST: Self = Self(i32::MAX.cast_unsigned());

    /// Creates a version. Zero and numbers that the store cannot hold are errors.
    pub fn new(version: u32) -> Result<Self, IdError> {
        if version >= 1 && i32::try_from(version).is_ok() {
            Ok(Self(version))
        } else {
            Err(IdError::new(
                "model version",
                "expected a number from 1 to 2147483647",
                &version.to_string(),
            ))
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for ModelVersion {
    type Error = IdError;

    fn try_from(version: u32) -> Result<Self, IdError> {
        Self::new(version)
    }
}

impl From<ModelVersion> for u32 {
    fn from(version: ModelVersion) -> u32 {
        version.0
    }
}

impl FromStr for ModelVersion {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Self::new(number),
            _ => Err(IdError::new(
                "model version",
                "expected a number from 1 to 2147483647",
                text,
            )),
        }
    }
}

impl fmt::Display for ModelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One version of one model, written `NAME:VERSION`. Profiles, plans and replicas refer to models by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelId {
    /// The model's name.
    pub name: ModelName,
    /// The model's version.
    pub version: ModelVersion,
}

impl FromStr for ModelId {
    type Err = IdError;

    /// Parses `NAME:VERSION`, or `NAME` for version 1.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let (name, version) = match text.split_once(':') {
            Some((name, version)) => (name, version.parse()?),
            None => (text, ModelVersion::FIRST),
        };
        Ok(Self {
            name: name.parse()?,
            version,
        })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.version)
    }
}

text_serde!(ModelId);

/// The SHA-256 of a model file, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArtifactDigest([u8; 32]);

impl ArtifactDigest {
    /// Creates a digest from the 32 bytes of a SHA-256.
    pub const fn from_sha256(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the 64 hexadecimal digits without the prefix, which are a safe file name.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }
}

impl FromStr for ArtifactDigest {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut bytes = [0; 32];
        match text.strip_prefix("sha256:") {
            Some(digits)
                if !digits.bytes().any(|b| b.is_ascii_uppercase())
                    && hex::decode_to_slice(digits, &mut bytes).is_ok() =>
            {
                Ok(Self(bytes))
            }
            _ => Err(IdError::new(
                "artifact digest",
                "expected sha256: and 64 lower-case hexadecimal digits",
                text,
            )),
        }
    }
}

impl fmt::Display for ArtifactDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.to_hex())
    }
}

impl fmt::Debug for ArtifactDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArtifactDigest({self})")
    }
}

text_serde!(ArtifactDigest);

/// A device of a node, written `NODE/LOCAL`: `rack1/GPU-5c8e…`, `laptop/cpu0`, `laptop/sim3`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceId {
    node: NodeName,
    local: String,
}

impl DeviceId {
    /// Creates an id of a node and the device's name within it. An error if `local` is not a valid name.
    pub fn new(node: NodeName, local: &str) -> Result<Self, IdError> {
        if is_name(local) {
            Ok(Self {
                node,
                local: local.to_owned(),
            })
        } else {
            Err(IdError::new("device name", NAME_RULE, local))
        }
    }

    /// Returns the node that has the device.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Returns the device's name within its node: an NVIDIA UUID, `cpu0`, `sim0`.
    pub fn local(&self) -> &str {
        &self.local
    }
}

impl FromStr for DeviceId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.split_once('/') {
            Some((node, local)) => Self::new(node.parse()?, local),
            None => Err(IdError::new("device id", "expected NODE/DEVICE", text)),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.local)
    }
}

text_serde!(DeviceId);

/// The number of a stored plan. A newer plan has a larger one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The identity of a set of replicas on one device whose programs share a backbone, so that one worker runs them. It follows from the
/// programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackboneId(u64);

impl BackboneId {
    /// Returns the identity of the set of replicas with these programs that has this number on its device.
    pub fn new(artifacts: impl IntoIterator<Item = ArtifactDigest>, number: u64) -> Self {
        let first_bytes = |digest: ArtifactDigest| {
            let (first, _) = digest.0.split_first_chunk().expect("a digest has 32 bytes");
            u64::from_le_bytes(*first)
        };
        let words = artifacts.into_iter().map(first_bytes);
        let programs = words.fold(0_u64, |id, word| id.rotate_left(7) ^ word);
        Self(programs.wrapping_add(number))
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for BackboneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for BackboneId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let is_hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
        let expected = "expected 16 hexadecimal digits";
        number
            .map(Self)
            .ok_or_else(|| IdError::new("backbone id", expected, text))
    }
}

/// The identity of a replica while it exists, written `GENERATION-NUMBER`: the plan that first contained it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReplicaId {
    /// The generation of the plan that first contained this replica.
    pub generation: Generation,
    /// The replica's number within that plan.
    pub number: u32,
}

impl FromStr for ReplicaId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parsed = text.split_once('-').and_then(|(generation, number)| {
            Some((generation.parse().ok()?, number.parse().ok()?))
        });
        match parsed {
            Some((generation, number)) => Ok(Self {
                generation: Generation(generation),
                number,
            }),
            None => Err(IdError::new(
                "replica id",
                "expected GENERATION-NUMBER",
                text,
            )),
        }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.generation, self.number)
    }
}

text_serde!(ReplicaId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_folder_or_break_a_path() {
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "a\\b",
            "a b",
            "a\0",
            "ä",
            "-x",
            &"x".repeat(129),
            "a%2Fb",
            "a:1",
        ] {
            assert!(bad.parse::<ModelName>().is_err(), "{bad:?} was accepted");
        }
        for good in [
            "a",
            "EfficientNet-Lite0",
            "all.mini_LM-6",
            "0",
            &"x".repeat(128),
        ] {
            assert_eq!(good.parse::<ModelName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn versions_are_plain_positive_numbers() {
        for bad in [
            "",
            "0",
            "+1",
            "-1",
            "1.0",
            "2147483648",
            "99999999999",
            "v1",
        ] {
            assert!(bad.parse::<ModelVersion>().is_err(), "{bad:?} was accepted");
        }
        assert_eq!("7".parse::<ModelVersion>().unwrap().get(), 7);
        assert_eq!("m:2".parse::<ModelId>().unwrap().to_string(), "m:2");
        assert_eq!("m".parse::<ModelId>().unwrap().to_string(), "m:1");
    }

    #[test]
    fn ids_print_as_they_are_read() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(
            digest.parse::<ArtifactDigest>().unwrap().to_string(),
            digest
        );
        assert!(digest.to_uppercase().parse::<ArtifactDigest>().is_err());
        assert!("sha256:0f".parse::<ArtifactDigest>().is_err());
        for id in ["laptop/cpu0", "n/GPU-5c8e"] {
            assert_eq!(id.parse::<DeviceId>().unwrap().to_string(), id);
        }
        assert_eq!("12-3".parse::<ReplicaId>().unwrap().to_string(), "12-3");
    }
}
