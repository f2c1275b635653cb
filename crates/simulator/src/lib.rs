//! A discrete-event world around the serving engine and a plan: what runs in the gateway, in virtual time.
//!
//! A [`Scenario`] says what there is and what is asked of it. Pure: files come in as text, the clock is the event queue's, and
//! randomness comes from a seed, one generator per purpose; the same input gives the same output, byte for byte.

mod scenario;
mod trace;

pub use scenario::{
    Arrivals, Fault, FaultKind, Rate, Scenario, ScenarioError, Simulation, Workload,
};
pub use trace::TraceError;
