//! The forecast of a model whose replicas compute full batches all the time.

use packhorse_cluster::{ModelForecast, RequestsPerSecond, Shortfall};

use crate::tolerance::CARRIED;

/// Returns the forecast of a model whose replicas together carry `carried` requests per second: a goodput of `min(carried, rate)`.
/// `unplaced` gives the shortfall if there are no replicas, and `partly_carried` the one if they carry less than the rate.
pub(crate) fn forecast(
    rate: RequestsPerSecond,
    replicas: usize,
    carried: f64,
    unplaced: impl FnOnce() -> Shortfall,
    partly_carried: impl FnOnce(RequestsPerSecond) -> Shortfall,
) -> ModelForecast {
    let goodput = RequestsPerSecond::new(carried.min(rate.get())).expect("between zero and a rate");
    let shortfall = if replicas == 0 {
        Some(unplaced())
    } else if carried < rate.get() * CARRIED {
        Some(partly_carried(goodput))
    } else {
        None
    };
    ModelForecast {
        goodput,
        latency: None,
        shortfall,
    }
}
