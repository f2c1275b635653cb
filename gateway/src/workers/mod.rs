//! The connections to workers: one task per replica connects, performs the handshake, sends large batches, and connects again when the
//! connection is lost. Threads of HTTP send small batches and receive results, as far as they have time.
//!
//! A link makes no decisions: it reports events to its owner (`LinkEvent`) and sends the batches that it is given.

mod connection;
mod connection_error;
mod directions;
mod incoming;
mod link;
mod link_event;
mod message_reader;
mod outgoing;
mod shared_memory;
mod socket;
mod wrong_result;

pub(crate) use link::{Endpoint, LinkConfig, Runtimes, WorkerLink};
pub(crate) use link_event::LinkEvent;
pub(crate) use outgoing::{BatchSender, OutgoingBatch};
