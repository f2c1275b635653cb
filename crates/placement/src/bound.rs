//! A bound on goodput that no plan and no dispatcher can exceed.

use std::collections::BTreeSet;

use packhorse_cluster::{DeviceKind, ModelIndex, Problem};

/// The requests of one model, for [`goodput_bound`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The arrivals, in requests/s.
    pub rate: f64,
    /// The real compute time over the profile's.
    pub latency_scale: f64,
}

/// Returns a bound on the requests per second that are answered within their SLO. `demands` has an entry for each model of the problem.
/// `devices` is the number of devices that compute all the time: those of the problem, or more where they also compute before and after
/// the time in which requests arrive.
///
/// A request costs a device at least `latency(b) · u(b) / b` of its time, with the batch size `b` at which that is least among those that
/// take at most the SLO alone, and `u` the utilisation of the multiprocessors, all of them where it is not known: replicas of a device progress at a rate with which the sum
/// of `u` is at most the whole device. The bound serves the cheapest requests first, as a fluid, until the time of all devices is used,
/// and has no memory, network, queues or batches that wait.
pub fn goodput_bound(problem: &Problem, demands: &[Demand], devices: f64) -> f64 {
    let models = problem.models().zip(demands);
    let mut costs: Vec<(f64, f64)> = models
        .map(|((model, _), demand)| {
            let cost = least_cost(problem, model, demand.latency_scale);
            (cost, demand.rate)
        })
        .filter(|(cost, _)| cost.is_finite())
        .collect();
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut served) = (devices, 0.0);
    for (cost, rate) in costs {
        let rate = rate.min(left / cost);
        served += rate;
        left -= rate * cost;
    }
    served
}

/// Returns the least time of a device that a request of a model costs on any device, in seconds; infinite if no device serves it in time.
pub(crate) fn least_cost(problem: &Problem, model: ModelIndex, latency_scale: f64) -> f64 {
    let spec = &problem.models[model.0];
    let on_kind = |kind: &DeviceKind| {
        let profile = problem.profiles.get(&spec.id, kind)?;
        let largest = profile.whole().last()?.batch_size;
        let sizes = 1..=largest.min(spec.max_batch_size);
        let cost = |batch: u32| {
            let latency = profile.latency(batch).mul_f64(latency_scale);
            let used = profile
                .sm_utilization(batch)
                .map_or(1.0, |used| used.get() / 100.0);
            (latency <= spec.slo).then(|| latency.as_secs_f64() * used / f64::from(batch))
        };
        sizes.filter_map(cost).min_by(f64::total_cmp)
    };
    let kinds: BTreeSet<&DeviceKind> = problem.devices.iter().map(|device| &device.kind).collect();
    let costs = kinds.into_iter().filter_map(on_kind);
    costs.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{device, equal_devices, profiles};

    /// One row of `half` takes 10 ms of half the multiprocessors, one of `whole` 30 ms of all.
    const ROWS: &str = "half,V100,1,,10,,100,,,50\nwhole,V100,1,,30,,100,,,\n";

    fn bound(devices: usize, models: &[(&str, f64, u64)]) -> f64 {
        let problem = equal_devices(device("V100", 16_384), devices, models, profiles(ROWS));
        let demands = models.iter().map(|&(_, rate, _)| Demand {
            rate,
            latency_scale: 1.0,
        });
        goodput_bound(&problem, &demands.collect::<Vec<_>>(), devices as f64)
    }

    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    }

    #[test]
    fn demand_that_fits_is_bounded_by_nothing() {
        assert_near(
            bound(1, &[("half", 100.0, 200), ("whole", 10.0, 300)]),
            110.0,
        );
    }

    #[test]
    fn scarce_devices_serve_the_cheapest_requests_first() {
        // Three quarters of the device's time for 5 ms each, the rest for 30 ms each.
        let found = bound(1, &[("whole", 1e5, 300), ("half", 150.0, 200)]);
        assert_near(found, 150.0 + 0.25 / 0.03);
    }

    #[test]
    fn models_that_no_device_serves_in_time_are_not_served() {
        let models = [
            ("half", 10.0, 200),
            ("whole", 10.0, 20),
            ("whole", 20.0, 10),
        ];
        assert_near(bound(2, &models), 10.0);
        assert_near(bound(0, &[("half", 10.0, 200)]) + 1.0, 1.0);
    }
}
