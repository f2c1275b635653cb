//! The queue in front of a model's replicas, and the fraction of requests that it drops.

/// The queue that all replicas of a model serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedQueue {
    /// Requests per second that arrive.
    pub(crate) rate: f64,
    /// Requests per second that the replicas carry in full batches.
    pub(crate) capacity: f64,
    /// Seconds that a request may wait before its batch must be sent.
    pub(crate) patience: f64,
    /// Index of dispersion of arrivals and services: variance over mean, in requests.
    pub(crate) dispersion: f64,
}

impl SharedQueue {
    /// Returns the fraction of requests that would wait longer than their patience and are dropped before service.
    ///
    /// With `ρ = rate / capacity`, bursts of `g = (dispersion + 1) / 2` requests (geometric bursts of mean `g` have that dispersion)
    /// and `W` the probability that a request of an endless queue would wait longer than `patience`,
    ///
    /// ```text
    /// W    = (1 - (1 - ρ) / g) · exp(-2 (1 - ρ) · capacity · patience / dispersion)
    /// loss = (1 - ρ) · W / (1 - ρ · W)
    /// ```
    ///
    /// The formula is that of Boots and Tijms, "A Multiserver Queueing System with Impatient Customers", Management Science 45 (1999), exact for
    /// exponential service and close for others; it is smooth above capacity, where it tends to `1 - 1/ρ`. The exponent is
    /// the heavy-traffic one (Kingman, "The single server queue in heavy traffic", 1961) for requests as the unit of work; only the
    /// first of a burst can find the queue empty.
    pub(crate) fn loss(self) -> f64 {
        if self.rate <= 0.0 {
            return 0.0;
        }
        if self.capacity <= 0.0 {
            return 1.0;
        }
        let burst = 0.5 * (self.dispersion.max(1.0) + 1.0);
        let free = 1.0 - self.rate / self.capacity;
        let decay = 2.0 * self.capacity * self.patience / self.dispersion;
        if free.abs() < 1e-6 {
            return 1.0 / (1.0 + 1.0 / burst + decay);
        }
        // The loss in terms of 1 / W, since W grows without bound above capacity.
        let rarity = (free * decay).exp() / (1.0 - free / burst);
        (free / (rarity - (1.0 - free))).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(rate: f64, capacity: f64, patience: f64, dispersion: f64) -> f64 {
        SharedQueue {
            rate,
            capacity,
            patience,
            dispersion,
        }
        .loss()
    }

    #[test]
    fn without_patience_the_loss_is_erlang_s_formula_for_one_server() {
        for load in [0.1, 0.5, 0.999_999_9, 2.0] {
            let erlang = load / (1.0 + load);
            assert!((loss(load, 1.0, 0.0, 1.0) - erlang).abs() < 1e-6, "{load}");
        }
    }

    #[test]
    fn far_above_capacity_the_excess_is_lost() {
        assert!((loss(300.0, 100.0, 1.0, 1.0) - 2.0 / 3.0).abs() < 1e-9);
        assert!((loss(300.0, 100.0, 1e9, 1.0) - 2.0 / 3.0).abs() < 1e-9);
        assert!(loss(1.0, 0.0, 1.0, 1.0) >= 1.0);
        assert!(loss(0.0, 100.0, 1.0, 1.0) <= 0.0);
    }

    #[test]
    fn the_loss_grows_with_rate_burstiness_and_impatience() {
        let loads = [0.2, 0.5, 0.8, 0.95, 1.0, 1.05, 1.5, 4.0];
        for pair in loads.windows(2) {
            for patience in [0.0, 0.01, 0.1, 1.0] {
                for dispersion in [0.5, 1.0, 4.0, 16.0] {
                    let at_load = |load: f64| loss(100.0 * load, 100.0, patience, dispersion);
                    assert!(
                        at_load(pair[0]) < at_load(pair[1]) + 1e-12,
                        "{pair:?} {patience} {dispersion}"
                    );
                    let patient = loss(100.0 * pair[0], 100.0, patience + 0.1, dispersion);
                    assert!(patient <= at_load(pair[0]) + 1e-12);
                    let burstier = loss(100.0 * pair[0], 100.0, patience, 2.0 * dispersion);
                    assert!(burstier >= at_load(pair[0]) - 1e-12);
                }
            }
        }
    }
}
