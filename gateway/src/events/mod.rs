//! The events of the cluster, for people and programs: what the control plane tells, who reads it, and what is wrong.
//!
//! The control plane appends events without waiting. One task gives them their numbers, stores them in batches, and then gives each to
//! all readers. A reader sees nothing that is not stored; therefore it can read on after its connection, or the gateway, was gone, and no
//! number that anybody has seen is ever used again.
//!
//! Everything is bounded: the stored events by number and bytes (`retention`), what waits to be stored, and what waits for a reader.
//! Where an event is lost at such a limit, the numbers have a gap, and readers that reach it get a new snapshot.

mod findings;
mod frame;
mod goodput;
mod log;
mod new_event;
mod reader;
mod retention;
mod shared;
mod writer;

pub use findings::Findings;
pub(crate) use goodput::last_second;
pub use log::EventLog;
pub(crate) use log::{CatchUp, ReaderPermit};
pub use new_event::NewEvent;
pub(crate) use reader::Reader;
