//! The queue in front of a model's replicas: which part of the requests is answered in time.

/// A model's replicas taken together, and what is asked of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    /// Requests per second that arrive.
    pub(crate) rate: f64,
    /// Requests per second that full batches carry.
    pub(crate) capacity: f64,
    /// How long a request may wait before its batch must be on its way, in seconds.
    pub(crate) patience: f64,
    /// Dispersion: variance over mean of arrivals and service, in requests.
    pub(crate) dispersion: f64,
}

impl Pool {
    /// The part of the requests that would wait longer than they may, and are dropped before they are served.
    ///
    /// With `ρ = rate / capacity`, bursts of `g = (dispersion + 1) / 2` requests (geometric bursts of mean `g` have that dispersion)
    /// and `W` the probability that a request of an endless queue would wait longer than `patience`,
    ///
    /// ```text
    /// W    = (1 - (1 - ρ) / g) · exp(-2 (1 - ρ) · capacity · patience / dispersion)
    /// loss = (1 - ρ) · W / (1 - ρ · W)
    /// ```
    ///
    /// The loss is Boots and Tijms', "A Multiserver Queueing System with Impatient Customers", Management Science 45 (1999), exact for
    /// exponential service and close for others; it goes on smoothly above capacity, where it tends to `1 - 1/ρ`. The exponent is
    /// the heavy-traffic one (Kingman, "The single server queue in heavy traffic", 1961) for requests as the unit of work; only the
    /// first of a burst can find nobody before it.
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
        // The loss as 1 / W gives it: above capacity W grows without bound.
        let rarity = (free * decay).exp() / (1.0 - free / burst);
        (free / (rarity - (1.0 - free))).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(rate: f64, capacity: f64, patience: f64, dispersion: f64) -> f64 {
        Pool {
            rate,
            capacity,
            patience,
            dispersion,
        }
        .loss()
    }

    #[test]
    fn without_patience_it_is_erlang_s_formula_for_one_server() {
        for load in [0.1, 0.5, 0.999_999_9, 2.0] {
            let erlang = load / (1.0 + load);
            assert!((loss(load, 1.0, 0.0, 1.0) - erlang).abs() < 1e-6, "{load}");
        }
    }

    #[test]
    fn far_above_capacity_what_exceeds_it_is_lost() {
        assert!((loss(300.0, 100.0, 1.0, 1.0) - 2.0 / 3.0).abs() < 1e-9);
        assert!((loss(300.0, 100.0, 1e9, 1.0) - 2.0 / 3.0).abs() < 1e-9);
        assert!(loss(1.0, 0.0, 1.0, 1.0) >= 1.0);
        assert!(loss(0.0, 100.0, 1.0, 1.0) <= 0.0);
    }

    #[test]
    fn more_is_lost_of_more_of_the_burstier_and_of_the_less_patient() {
        let loads = [0.2, 0.5, 0.8, 0.95, 1.0, 1.05, 1.5, 4.0];
        for pair in loads.windows(2) {
            for patience in [0.0, 0.01, 0.1, 1.0] {
                for dispersion in [0.5, 1.0, 4.0, 16.0] {
                    let of = |load: f64| loss(100.0 * load, 100.0, patience, dispersion);
                    assert!(
                        of(pair[0]) < of(pair[1]) + 1e-12,
                        "{pair:?} {patience} {dispersion}"
                    );
                    let patient = loss(100.0 * pair[0], 100.0, patience + 0.1, dispersion);
                    assert!(patient <= of(pair[0]) + 1e-12);
                    let burstier = loss(100.0 * pair[0], 100.0, patience, 2.0 * dispersion);
                    assert!(burstier >= of(pair[0]) - 1e-12);
                }
            }
        }
    }
}
