//! An estimate of the fraction of each model's requests that a placement answers within the SLO.
//!
//! [`PlacementEstimate`] is a fixed point over devices and models. The parts, in the order in which a request meets them:
//!
//! 1. *Arrivals and batches* ([`deadline`]): late binding distributes a model's requests over its replicas in proportion to their
//!    capacity. While a replica computes, the requests of its next batch arrive.
//! 2. *Network*: hand-over and transmission, per batch and per byte. A replica holds two batches at a time, which bounds its capacity
//!    where transmission takes longer than computing.
//! 3. *Waiting*: for the batches in front ([`deadline`]), and in a queue that full batches drain and whose late requests are dropped
//!    ([`queue`]). Bursty arrivals make both longer.
//! 4. *Computing* ([`batch_costs`]): at the mean batch size, under the compute share, and at the relative speed that the neighbours
//!    leave ([`neighbours`]). Each neighbour is active as often as it is busy, and slows others as observations have shown.
//!
//! The estimate distinguishes two states. In the *normal* state batches have the size that arrivals give them; it determines how long
//! requests wait. In the *backlog* state all batches are as large as the deadlines allow; it determines the capacity. (Bursts are a
//! third state, of one model at a time.) The states differ where large batches use more of the device per request than small ones: a
//! placement that carries its load only in small batches never recovers from a backlog, so its capacity is that of the backlog state.
//!
//! Profiles contain measurement errors: the estimate never takes a larger batch to be faster, and it adds the measured variation
//! of batch times to the variation that neighbours cause ([`batch_costs`]).
//!
//! The estimate uses nothing but [`packhorse_cluster::Problem`]. It describes the discipline `deadline`; for `fixed-wait`, which drops
//! no request, [`fixed_wait`] replaces [`deadline`].

mod batch_costs;
mod deadline;
mod demand;
mod fixed_wait;
mod inputs;
mod model_estimate;
mod neighbours;
mod placement_estimate;
mod queue;
mod replica;

pub(crate) use batch_costs::BatchCosts;
pub(crate) use inputs::EstimateInputs;
pub(crate) use model_estimate::ModelEstimate;
pub(crate) use placement_estimate::PlacementEstimate;
pub(crate) use replica::EstimatedReplica;
