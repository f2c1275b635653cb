//! The rates at which replicas progress that compute on one device at the same moment, and the cost of compute shares.

use packhorse_cluster::{ComputeShare, Percent, Profile, UnitError};

/// The use of the multiprocessors by a replica that is computing a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputeDemand {
    /// The utilisation of the multiprocessors by the batch with the device to itself (`u`).
    pub sm_utilization: Percent,
    /// The share of the multiprocessors that the replica may use (`s`); `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
}

impl ComputeDemand {
    /// Takes the utilisation of a batch of `rows` rows from its profile. An unmeasured utilisation counts as the whole device, so
    /// that no plan relies on capacity that was never measured.
    pub fn new(profile: &Profile, rows: u32, compute_share: Option<ComputeShare>) -> Self {
        Self::with_optional_profile(Some(profile), rows, compute_share)
    }

    /// Takes the utilisation from a profile where there is one, as [`ComputeDemand::new`] does; without one, it is the whole device's.
    pub(crate) fn with_optional_profile(
        profile: Option<&Profile>,
        rows: u32,
        compute_share: Option<ComputeShare>,
    ) -> Self {
        let whole = Percent::new(100.0).expect("100 is a percentage");
        let measured = profile.and_then(|profile| profile.sm_utilization(rows));
        Self {
            sm_utilization: measured.unwrap_or(whole),
            compute_share,
        }
    }

    /// The utilisation under the compute share: `u_eff = min(u, s)`, in percent.
    pub(crate) fn effective_utilization(self) -> f64 {
        let utilization = self.sm_utilization.get();
        self.compute_share
            .map_or(utilization, |share| utilization.min(share.get()))
    }
}

/// The cost of co-location and of compute shares.
///
/// Let `u` be a replica's SM utilisation alone on its device, `s` its share (100 without one), `u_eff = min(u, s)`, and `S` the sum
/// of `u_eff` over the replicas that are active at this moment. A replica progresses at
///
/// ```text
/// rate = min(1, 100 / S if two or more are active)
///      / (u / s)^mps_exponent        where s < u
///      / (1 + extra_slowdown · (S − u_eff) / 100)
/// ```
///
/// of its speed alone on the whole device: multiprocessors are shared in proportion once they are oversubscribed, and a share
/// below the utilisation of a kernel costs more than its proportion.
///
/// Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", chapter 6 (co-location without and
/// with MPS); the exponent is fitted to its measurements. `extra_slowdown` is ours: contention beyond the multiprocessors
/// (caches, memory bandwidth), which a `Problem` does not contain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interference {
    mps_exponent: f64,
    extra_slowdown: f64,
}

impl Default for Interference {
    /// Exponent 1.6, no extra slowdown.
    fn default() -> Self {
        Self {
            mps_exponent: 1.6,
            extra_slowdown: 0.0,
        }
    }
}

impl Interference {
    /// `mps_exponent` is the power of `u / s` by which a share below a replica's utilisation slows it; 1 is in proportion.
    /// `extra_slowdown` is the relative slowdown per 100 % of the utilisation of other active replicas.
    ///
    /// # Errors
    /// Returns an error if a number is not between 0 and 100.
    pub fn new(mps_exponent: f64, extra_slowdown: f64) -> Result<Self, UnitError> {
        for (unit, value) in [
            ("the MPS exponent", mps_exponent),
            ("the extra slowdown", extra_slowdown),
        ] {
            if !(0.0..=100.0).contains(&value) {
                return Err(UnitError {
                    unit,
                    allowed: "between 0 and 100",
                    value,
                });
            }
        }
        Ok(Self {
            mps_exponent,
            extra_slowdown,
        })
    }

    /// The power of `u / s` by which a share below a replica's utilisation slows it.
    pub fn mps_exponent(self) -> f64 {
        self.mps_exponent
    }

    /// The rate of progress of each active replica, in their order: 1 is its speed alone on the whole device.
    pub fn rates(self, active: &[ComputeDemand]) -> impl Iterator<Item = f64> {
        let total: f64 = active
            .iter()
            .map(|demand| demand.effective_utilization())
            .sum();
        let proportional = proportional_rate(total, active.len() > 1);
        active.iter().map(move |&demand| {
            let others = total - demand.effective_utilization();
            proportional * self.solo_rate(demand) / (1.0 + self.extra_slowdown * others / 100.0)
        })
    }

    /// The rate of progress of a replica that is the only active one of its device: below 1 if its share is below its utilisation.
    pub fn solo_rate(self, demand: ComputeDemand) -> f64 {
        let utilization = demand.sm_utilization.get();
        match demand.compute_share {
            Some(share) if share.get() < utilization => {
                (share.get() / utilization).powf(self.mps_exponent)
            }
            _ => 1.0,
        }
    }
}

/// The rate of each active replica when the multiprocessors are shared in proportion. `total` is the sum of the effective
/// utilisations in percent; a replica alone is not slowed.
pub(crate) fn proportional_rate(total: f64, several_active: bool) -> f64 {
    if several_active && total > 100.0 {
        100.0 / total
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(sm_utilization: f64, share: Option<f64>) -> ComputeDemand {
        ComputeDemand {
            sm_utilization: Percent::new(sm_utilization).unwrap(),
            compute_share: share.map(|share| ComputeShare::new(share).unwrap()),
        }
    }

    fn check(interference: Interference, replicas: &[(f64, Option<f64>)], expected: &[f64]) {
        let replicas: Vec<ComputeDemand> = replicas.iter().map(|&(u, s)| demand(u, s)).collect();
        let rates: Vec<f64> = interference.rates(&replicas).collect();
        assert_eq!(rates.len(), expected.len());
        for (rate, expected) in rates.iter().zip(expected) {
            assert!(
                (rate - expected).abs() < 1e-9,
                "{rates:?}, expected {expected:?}"
            );
        }
    }

    #[test]
    fn rates_are_those_calculated_by_hand() {
        let plain = Interference::default();
        check(plain, &[], &[]);
        check(plain, &[(99.0, None)], &[1.0]);
        // 40 + 60 = 100: both fit exactly. 80 + 60 + 60 = 200: each at half speed.
        check(plain, &[(40.0, None), (60.0, None)], &[1.0, 1.0]);
        check(
            plain,
            &[(80.0, None), (60.0, None), (60.0, None)],
            &[0.5, 0.5, 0.5],
        );
        // A share of 25 under a utilisation of 100 costs 4^1.6 = 9.18958683997628; a share above the utilisation nothing.
        check(plain, &[(100.0, Some(25.0))], &[1.0 / 9.189_586_839_976_28]);
        check(plain, &[(50.0, Some(60.0)), (40.0, None)], &[1.0, 1.0]);
        // u_eff is 50 and 75, S = 125: 100/125 = 0.8 for both, and the first one also pays (100/50)^2 = 4.
        let square = Interference::new(2.0, 0.0).unwrap();
        check(square, &[(100.0, Some(50.0)), (75.0, None)], &[0.2, 0.8]);
        // The extra slowdown counts what the others use, contended or not.
        let hidden = Interference::new(1.6, 0.3).unwrap();
        check(
            hidden,
            &[(40.0, None), (50.0, None)],
            &[1.0 / 1.15, 1.0 / 1.12],
        );
        check(
            hidden,
            &[(100.0, None), (100.0, None)],
            &[0.5 / 1.3, 0.5 / 1.3],
        );
        check(hidden, &[(100.0, None)], &[1.0]);
    }

    #[test]
    fn exponents_out_of_range_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -0.1] {
            assert!(Interference::new(bad, 0.0).is_err());
            assert!(Interference::new(1.6, bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn neighbours_never_speed_a_replica_up_and_a_device_is_never_used_beyond_its_capacity(
            replicas in proptest::collection::vec((0.0..=100.0, proptest::option::of(1.0..=100.0)), 1..8),
            extra in 0.0..2.0,
        ) {
            let interference = Interference::new(1.6, extra).unwrap();
            let replicas: Vec<ComputeDemand> = replicas.into_iter().map(|(u, s)| demand(u, s)).collect();
            let rates: Vec<f64> = interference.rates(&replicas).collect();
            for (&replica, &rate) in replicas.iter().zip(&rates) {
                prop_assert!(rate > 0.0 && rate <= interference.solo_rate(replica) && rate <= 1.0);
            }
            let used = |(demand, rate): (&ComputeDemand, &f64)| demand.effective_utilization() * rate;
            let used: f64 = replicas.iter().zip(&rates).map(used).sum();
            prop_assert!(used <= 100.0 + 1e-9);
        }
    }
}
