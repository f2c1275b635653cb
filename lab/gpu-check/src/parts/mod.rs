//! The parts of the check, one file each, and their table.

mod answers;
mod copies;
mod correctness;
mod devices;
mod faults;
mod goodput;
mod graphs;
mod green_contexts;
mod memory;
mod mps;
mod pools;
mod precision;
mod profiles;
mod streams;
mod throughput;

use crate::part::Part;

/// All parts, in the order in which they run: first those that others depend on, last those that the time limit may cut short.
pub(crate) const PARTS: [&dyn Part; 16] = [
    &devices::Devices,
    &correctness::CORRECTNESS,
    &answers::Answers,
    &throughput::Throughput,
    &copies::Copies,
    &streams::Streams,
    &graphs::Graphs,
    &mps::Mps,
    &green_contexts::GreenContexts,
    &precision::Precision,
    &memory::Memory,
    &pools::Pools,
    &faults::Faults,
    &goodput::Goodput,
    &profiles::Profiles,
    &correctness::MODELS,
];
