//! The requests of one model.

use packhorse_cluster::{DemandedModel, Discipline, Problem};

/// The arrivals of one model, its SLO, and the network between clients and replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Requests per second, reduced by the clients' own work.
    pub(crate) rate: f64,
    /// The SLO in seconds.
    pub(crate) slo: f64,
    /// Seconds on the network of a batch of no bytes, both directions.
    pub(crate) network_latency: f64,
    /// Seconds on the network per row.
    pub(crate) network_latency_per_row: f64,
    /// Index of dispersion of the arrivals: variance over mean of their number in a long time. 1 is Poisson.
    pub(crate) dispersion: f64,
    /// The time in seconds that an open batch waits under the discipline `fixed-wait`; `None` under `deadline`.
    pub(crate) fixed_wait: Option<f64>,
}

impl Demand {
    pub(super) fn new(model: &DemandedModel, problem: &Problem) -> Self {
        let (conditions, network) = (&problem.conditions, &problem.network);
        let fixed_wait = problem.discipline == Discipline::FixedWait;
        let nominal = model.rate.get();
        // A client works after each gap: that makes gaps longer, and more regular.
        let slower = 1.0 / (1.0 + nominal * conditions.client_overhead.as_secs_f64());
        let network_latency = conditions.router_overhead + network.base + conditions.return_time;
        Self {
            rate: nominal * slower,
            slo: model.slo.as_secs_f64(),
            network_latency: network_latency.as_secs_f64(),
            network_latency_per_row: model.payload.as_u64() as f64 / network.bytes_per_second,
            dispersion: (conditions.burstiness * slower).powi(2),
            fixed_wait: fixed_wait.then_some(conditions.max_batch_wait.as_secs_f64()),
        }
    }

    /// Returns the mean requests per burst; 1 if requests arrive one by one. Bursts of a geometric size with this mean have the
    /// dispersion.
    pub(crate) fn mean_burst(&self) -> f64 {
        0.5 * (self.dispersion.max(1.0) + 1.0)
    }
}
