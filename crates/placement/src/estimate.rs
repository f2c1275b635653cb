//! What a placement is worth: the part of each model's requests that is answered within its SLO.
//!
//! A fixed point over devices and models, settled by [`Outlook`]. In the order in which a request meets them:
//!
//! 1. *What comes to a replica, and in what batches* ([`fate`]): late binding shares a model's requests out by what its replicas
//!    carry; a replica that works on while the next batch gathers takes what came meanwhile.
//! 2. *The way there*: hand-over and network, per batch and per byte; a replica holds two batches at a time, which bounds what it
//!    carries where the way is longer than the computing.
//! 3. *Waiting*: for the batches before it ([`fate`]), and behind others in a queue that is drained by full batches and whose
//!    requests are dropped once they are too late ([`queue`]); bursty arrivals make both longer.
//! 4. *Computing* ([`service`]), at the batch's real size, under its compute share, at the [`sharing`] pace that the neighbours leave, each
//!    active as often as it is busy, with what was learned of them beyond the physics.
//!
//! Two states are told apart. *Calm*: batches of the size that gathers; it says how long a request waits. *Crowded*: everybody's
//! batches are as large as deadlines let them be behind a backlog; it says what replicas carry. (Bursts are a third, of one model at
//! a time.) They differ where large batches use more of the
//! device per request than small ones do: a placement that only carries its load in small batches never recovers from a backlog,
//! and is not taken to carry it.
//!
//! Profiles are measured, and some badly: larger batches are taken never to be quicker, and what a batch's measured tail adds counts
//! like what neighbours do ([`service`]).
//!
//! The estimate knows what [`packhorse_cluster::Problem`] says. It is one for the discipline `deadline`; for `fixed-wait`, which
//! drops nothing, [`fixed_wait`] has another view of
//! what comes to a replica.

mod fate;
mod fixed_wait;
mod outlook;
mod queue;
mod service;
mod sharing;
mod world;

pub(crate) use fate::Fate;
pub(crate) use outlook::{Outlook, Slot};
pub(crate) use service::Service;
pub(crate) use world::World;
