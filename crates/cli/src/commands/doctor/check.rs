//! The result of a check: what was found, and the line that mends it.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// The part that was examined.
    pub(super) part: &'static str,
    /// The verdict.
    pub(super) verdict: Verdict,
    /// The finding, as text for people.
    pub(super) text: String,
    /// The line that mends it; none if nothing has to be mended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cure: Option<String>,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// The part is as it should be.
    Ok,
    /// There was nothing to examine.
    Skipped,
    /// The part works, and will not under some condition.
    Warning,
    /// The part does not work.
    Problem,
}

impl Check {
    pub(super) fn ok(part: &'static str, text: impl Into<String>) -> Self {
        Self::new(part, Verdict::Ok, text, None)
    }

    pub(super) fn skipped(part: &'static str, text: impl Into<String>) -> Self {
        Self::new(part, Verdict::Skipped, text, None)
    }

    pub(super) fn warning(
        part: &'static str,
        text: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self::new(part, Verdict::Warning, text, Some(cure.into()))
    }

    pub(super) fn problem(
        part: &'static str,
        text: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self::new(part, Verdict::Problem, text, Some(cure.into()))
    }

    fn new(
        part: &'static str,
        verdict: Verdict,
        text: impl Into<String>,
        cure: Option<String>,
    ) -> Self {
        Self {
            part,
            verdict,
            text: text.into(),
            cure,
        }
    }
}
