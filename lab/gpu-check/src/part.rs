//! The interface of the check's parts.

use crate::{host::Host, report::Section};

/// The reason for checks that are not possible on the CPU.
pub(crate) const NO_GPU: &str = "the device is not a GPU";

/// A part of the check, about one subject.
pub(crate) trait Part: Sync {
    /// Returns the name for `--only`.
    fn name(&self) -> &'static str;

    /// Describes the checked subject.
    fn description(&self) -> &'static str;

    /// Runs the part and adds the results to the section.
    ///
    /// # Errors
    /// If the part cannot go on.
    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()>;
}
