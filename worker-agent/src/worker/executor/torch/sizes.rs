//! What a GPU does for every batch size before it serves: it runs a batch of it, and records one if it is to.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use packhorse_cluster::Program;

use super::{
    Torch,
    batch::Prepared,
    shim::{Graph, Thrown},
};
use crate::executor::sample::{self, Fill};

/// How long a GPU may take to meet the batch sizes between 1, 2, 4, … before it serves.
const TIME_BETWEEN_SIZES: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Graphs {
    /// By the shapes of the inputs.
    pub(super) by_shapes: BTreeMap<Vec<Vec<i64>>, Graph>,
    pub(super) batch_sizes: Vec<u32>,
}

impl Graphs {
    fn any(&self) -> Option<&Graph> {
        self.by_shapes.values().next()
    }
}

impl Torch {
    /// Runs made-up batches of the sizes between those that have run, as long as there is time: at the first batch of a size, the
    /// libraries of a GPU choose among their kernels, which takes longer than the batch. Gives all sizes that have run, in ascending
    /// order.
    pub(super) fn meet_sizes_between(
        &self,
        program: &Program,
        met: &[u32],
        fill: Fill,
    ) -> Vec<u32> {
        let go_on = within(TIME_BETWEEN_SIZES);
        let mut all = met.to_vec();
        let largest = met.last().copied().unwrap_or(0);
        // Large batches are what is sent under load.
        for rows in (1..largest).rev().filter(|rows| !met.contains(rows)) {
            if !go_on() {
                tracing::info!(batch.size = rows, "no time to run this and smaller sizes");
                break;
            }
            if let Err(error) = sample::run(self, program, rows, fill) {
                tracing::warn!(batch.size = rows, %error, "a size between others does not run");
                break;
            }
            all.push(rows);
        }
        all.sort_unstable();
        all
    }

    /// Records the program at these batch sizes, the largest first: the others use its memory. Where one cannot be recorded, neither can
    /// those below it; why is kept if there is none at all.
    pub(super) fn record(&self, program: &Program, sizes: &[u32], fill: Fill) {
        let mut graphs = Graphs::default();
        let mut failed = None;
        for rows in sizes.iter().rev() {
            match self.record_size(program, *rows, fill, graphs.any()) {
                Ok((shapes, graph)) => {
                    graphs.by_shapes.insert(shapes, graph);
                    graphs.batch_sizes.insert(0, *rows);
                }
                Err(reason) => {
                    tracing::warn!(batch.size = rows, reason, "runs cannot be recorded");
                    failed = Some(reason);
                    break;
                }
            }
        }
        tracing::info!(batch_sizes = ?graphs.batch_sizes, "runs recorded");
        let none = graphs.batch_sizes.is_empty();
        // Nobody has set it before.
        let _ = self
            .device
            .graphs
            .set(failed.filter(|_| none).map_or(Ok(graphs), Err));
    }

    fn record_size(
        &self,
        program: &Program,
        rows: u32,
        fill: Fill,
        beside: Option<&Graph>,
    ) -> Result<(Vec<Vec<i64>>, Graph), String> {
        let say = |thrown: Thrown| thrown.summary();
        let inputs = sample::inputs(program, rows).map_err(|e| e.to_string())?;
        let mut batch = Prepared::new(&self.device, &inputs).map_err(say)?;
        sample::fill_inputs(&mut batch, program, fill);
        batch.record(beside).map_err(say)
    }
}

/// Says whether so much time is not over yet.
#[expect(
    clippy::disallowed_methods,
    reason = "an executor is what takes real time"
)]
fn within(limit: Duration) -> impl Fn() -> bool {
    let start = Instant::now();
    move || start.elapsed() < limit
}
