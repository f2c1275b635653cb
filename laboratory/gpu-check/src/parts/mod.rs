//! What is checked: one trait, one file per subject, and the table that lists them.

mod copies;
mod correctness;
mod devices;
mod faults;
mod goodput;
mod graphs;
mod mps;
mod profiles;
mod streams;
mod throughput;

use crate::{host::Host, report::Section};

/// One subject.
pub(crate) trait Part: Sync {
    /// As `--only` takes it.
    fn name(&self) -> &'static str;

    /// What is looked at, for people.
    fn about(&self) -> &'static str;

    /// Looks at it and says in the section what came of it.
    ///
    /// # Errors
    /// If nothing more can come of it.
    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()>;
}

/// All of them, in the order in which they run: what others rest on first, and last what can be cut short.
pub(crate) const PARTS: [&dyn Part; 11] = [
    &devices::Devices,
    &correctness::CORRECTNESS,
    &throughput::Throughput,
    &copies::Copies,
    &streams::Streams,
    &graphs::Graphs,
    &mps::Mps,
    &faults::Faults,
    &goodput::Goodput,
    &profiles::Profiles,
    &correctness::MODELS,
];
