//! The engine's settings.

use std::time::Duration;

use packhorse_cluster::Discipline;

use crate::BatchKey;

/// The settings of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The discipline by which waiting requests become batches.
    pub discipline: Discipline,
    /// The longest time for which `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
    /// The parts of `deadline` that are in use.
    pub deadline: DeadlineOptions,
    /// The most times that a request is dispatched, counting the first: a request that kills its workers must not be retried
    /// for ever.
    pub max_attempts: u32,
    /// The most workers that a request may be lost with while they compute its batch: the second time it travels alone.
    pub max_losses: u32,
    /// The number of the first batch. The numbers of engines whose parts are exchanged must never meet.
    pub first_batch: BatchKey,
}

impl Default for EngineConfig {
    /// Returns the default discipline, the thesis' 100 ms for an open batch, two retries and two
    /// losses.
    fn default() -> Self {
        Self {
            discipline: Discipline::default(),
            max_batch_wait: Duration::from_millis(100),
            deadline: DeadlineOptions::default(),
            max_attempts: 3,
            max_losses: 2,
            first_batch: BatchKey(0),
        }
    }
}

/// The parts of the discipline `deadline` that are in use: all of them, except in an ablation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineOptions {
    /// True if requests that cannot be in time are refused or dropped. If false, they are served late, and `look_ahead` has no
    /// effect.
    pub drop: bool,
    /// True if a request is dropped whose deadline keeps batches small for those behind it.
    pub look_ahead: bool,
    /// True if partial batches are held for a busy replica.
    pub holding: bool,
}

impl Default for DeadlineOptions {
    fn default() -> Self {
        Self {
            drop: true,
            look_ahead: true,
            holding: true,
        }
    }
}
