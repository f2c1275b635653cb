//! API keys: who may send requests, read the cluster's state, or change it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::model::present;

/// A permission of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// Inference requests to the models whose names match the pattern, in which `*` stands for any characters and `?` for one.
    Infer(String),
    /// Reading everything on the admin listener that is no secret.
    Read,
    /// Everything on the admin listener.
    Admin,
}

/// A text that is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown scope {0:?}: expected infer:PATTERN (at most {limit} characters; * and ? match), read or admin",
    limit = Scope::MAX_PATTERN
)]
pub struct UnknownScope(String);

impl Scope {
    /// The most characters of a pattern.
    pub const MAX_PATTERN: usize = 128;
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        let in_pattern = |c: char| c.is_ascii_alphanumeric() || "._-*?".contains(c);
        match text.strip_prefix("infer:") {
            Some(pattern)
                if (1..=Self::MAX_PATTERN).contains(&pattern.len())
                    && pattern.chars().all(in_pattern) =>
            {
                Ok(Self::Infer(pattern.to_owned()))
            }
            None if text == "read" => Ok(Self::Read),
            None if text == "admin" => Ok(Self::Admin),
            _ => Err(UnknownScope(text.chars().take(Self::MAX_PATTERN).collect())),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = UnknownScope;

    fn try_from(text: String) -> Result<Self, UnknownScope> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infer(pattern) => write!(f, "infer:{pattern}"),
            Self::Read => f.write_str("read"),
            Self::Admin => f.write_str("admin"),
        }
    }
}

/// A limit of a key for the models of a pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyModelLimit {
    /// The pattern of the models' names (`*` and `?` match). The limit is for the sum of their requests.
    #[schema(min_length = 1, example = "resnet*")]
    pub model: String,
    /// The most inference requests per second to them; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 1e6)]
    pub rate_rps: Option<f64>,
    /// The most inference requests to them at the same time; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_in_flight: Option<u32>,
}

/// Makes a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// The name, for people: 1 to 128 characters.
    #[schema(min_length = 1, max_length = 128, example = "checkout service")]
    pub name: String,
    /// The permissions: `infer:PATTERN` (model names; `*` and `?` match), `read` and `admin`.
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 64, example = json!(["infer:minilm*"]))]
    pub scopes: Vec<Scope>,
    /// The Unix time in milliseconds from which on the key is not valid any more; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    /// The most inference requests per second, over which requests are refused with 429; as many more may come at once. No limit if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 1e6)]
    pub rate_rps: Option<f64>,
    /// The most inference requests at the same time; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_in_flight: Option<u32>,
    /// The limits for single models, beside those of the key. A request is within all whose pattern its model or family matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64)]
    pub model_limits: Vec<KeyModelLimit>,
}

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    /// The identity, which is a part of the key.
    pub id: String,
    /// The name, for people.
    pub name: String,
    /// The permissions.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<Scope>,
    /// The Unix time at which the key was made, in milliseconds.
    pub created_at_ms: i64,
    /// The Unix time from which on the key is not valid any more, in milliseconds; null for never.
    pub expires_at_ms: Option<i64>,
    /// The most inference requests per second; null for no limit.
    pub rate_rps: Option<f64>,
    /// The most inference requests at the same time; null for no limit.
    pub max_in_flight: Option<u32>,
    /// The limits for single models.
    #[serde(default)]
    pub model_limits: Vec<KeyModelLimit>,
    /// The Unix time at which the key was last used, in milliseconds, exact to a minute over a restart; null for never.
    pub last_used_at_ms: Option<i64>,
}

/// A key that was made or rotated, with its secret, which is shown here and never again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// The key, for `Authorization: Bearer`.
    pub key: String,
    /// Its properties.
    #[serde(flatten)]
    pub view: KeyView,
}

/// Changes the limits of a key. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyChange {
    /// The most inference requests per second; null removes the limit.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0, maximum = 1e6)]
    pub rate_rps: Option<Option<f64>>,
    /// The most inference requests at the same time; null removes the limit.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub max_in_flight: Option<Option<u32>>,
    /// The limits for single models, in place of all that the key has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 64)]
    pub model_limits: Option<Vec<KeyModelLimit>>,
}

/// Replaces the secret of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRotation {
    /// The time for which the former secret stays valid, in seconds; 0 if absent.
    #[serde(default)]
    #[schema(maximum = 2_592_000)]
    pub overlap_s: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_written_as_they_are_read_and_nothing_else_is_one() {
        for text in ["infer:*", "infer:minilm-?", "read", "admin"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        let long = format!("infer:{}", "a".repeat(129));
        for text in [
            "",
            "infer",
            "infer:",
            "infer:a b",
            "infer:a/b",
            "Admin",
            "write",
            &long,
        ] {
            let error = text.parse::<Scope>().unwrap_err().to_string();
            assert!(error.contains("expected infer:PATTERN"), "{error}");
            assert!(error.len() < 300, "{error}");
        }
    }
}
