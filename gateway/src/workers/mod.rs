//! The connections to workers: one task per replica connects, performs the handshake, sends batches and receives their results,
//! and connects again when the connection is lost.
//!
//! A link makes no decisions: it reports events to its owner ([`LinkEvent`]) and sends the batches that it is given.

mod connection;
mod connection_error;
mod link;
mod link_event;
mod outgoing;
mod shared_memory;
mod socket;

pub(crate) use link::{Endpoint, LinkConfig, WorkerLink};
pub(crate) use link_event::LinkEvent;
pub(crate) use outgoing::{BatchSender, OutgoingBatch};
