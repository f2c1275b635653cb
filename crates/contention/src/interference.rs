//! How replicas that compute on one device at the same moment slow each other, and what a compute share costs the one it
//! binds.

use packhorse_cluster::{ComputeShare, Percent, Profile, UnitError};

/// A replica that is computing a batch at this moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Active {
    /// Utilisation of the multiprocessors that the batch has with the device to itself (`u`).
    pub sm_utilization: Percent,
    /// The share of the multiprocessors it may use (`s`); `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
}

impl Active {
    /// A batch of `rows` rows by its profile. An unmeasured utilisation counts as the whole device: nobody should rely on room
    /// that was never seen.
    pub fn new(profile: &Profile, rows: u32, compute_share: Option<ComputeShare>) -> Self {
        Self::measured(Some(profile), rows, compute_share)
    }

    /// The same where there may be no profile.
    pub(crate) fn measured(
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

    /// What it takes of the device: `u_eff = min(u, s)`, in percent.
    pub(crate) fn effective(self) -> f64 {
        let utilization = self.sm_utilization.get();
        self.compute_share
            .map_or(utilization, |share| utilization.min(share.get()))
    }
}

/// The rule of co-location and of compute shares.
///
/// With `u` a replica's solo SM utilisation, `s` its share (100 without one), `u_eff = min(u, s)` and `S` the sum of `u_eff` over
/// the replicas that are active at this moment, a replica progresses at
///
/// ```text
/// rate = min(1, 100 / S if two or more are active)
///      / (u / s)^mps_exponent        where s < u
///      / (1 + extra_slowdown · (S − u_eff) / 100)
/// ```
///
/// of its solo speed on the whole device: multiprocessors are shared in proportion once they are oversubscribed, and a share
/// below what a kernel would use costs more than its proportion.
///
/// Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", chapter 6 (co-location without and
/// with MPS); the exponent is fitted to its measurements. `extra_slowdown` is ours: contention beyond the multiprocessors
/// (caches, memory bandwidth), which no planner is told of.
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
    /// `mps_exponent`: how much faster than in proportion a replica slows under a share below its utilisation, 1 for in
    /// proportion. `extra_slowdown`: relative slowdown per 100 % of co-active utilisation.
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

    /// How much faster than in proportion a replica slows under a share below its utilisation.
    pub fn mps_exponent(self) -> f64 {
        self.mps_exponent
    }

    /// The rate of progress of each active replica, in their order: 1 is its solo speed on the whole device.
    pub fn rates(self, active: &[Active]) -> impl Iterator<Item = f64> {
        let total: f64 = active.iter().map(|replica| replica.effective()).sum();
        let contended = contention(total, active.len() > 1);
        active.iter().map(move |&replica| {
            let others = total - replica.effective();
            contended * self.solo_rate(replica) / (1.0 + self.extra_slowdown * others / 100.0)
        })
    }

    /// The rate of progress of a replica that is the only active one of its device: below 1 where its share binds.
    pub fn solo_rate(self, replica: Active) -> f64 {
        let utilization = replica.sm_utilization.get();
        match replica.compute_share {
            Some(share) if share.get() < utilization => {
                (share.get() / utilization).powf(self.mps_exponent)
            }
            _ => 1.0,
        }
    }
}

/// The rate of each of the active, whose effective utilisation sums up to `total`, while multiprocessors are shared in proportion.
pub(crate) fn contention(total: f64, in_company: bool) -> f64 {
    if in_company && total > 100.0 {
        100.0 / total
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn active(sm_utilization: f64, share: Option<f64>) -> Active {
        Active {
            sm_utilization: Percent::new(sm_utilization).unwrap(),
            compute_share: share.map(|share| ComputeShare::new(share).unwrap()),
        }
    }

    fn check(interference: Interference, replicas: &[(f64, Option<f64>)], expected: &[f64]) {
        let replicas: Vec<Active> = replicas.iter().map(|&(u, s)| active(u, s)).collect();
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
    fn rates_worked_out_by_hand() {
        let plain = Interference::default();
        check(plain, &[], &[]);
        check(plain, &[(99.0, None)], &[1.0]);
        // 40 + 60 = 100: just room for both. 80 + 60 + 60 = 200: everybody at half speed.
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
    fn nonsense_exponents_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -0.1] {
            assert!(Interference::new(bad, 0.0).is_err());
            assert!(Interference::new(1.6, bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn company_never_speeds_up_and_the_device_never_does_more_than_it_can(
            replicas in proptest::collection::vec((0.0..=100.0, proptest::option::of(1.0..=100.0)), 1..8),
            extra in 0.0..2.0,
        ) {
            let interference = Interference::new(1.6, extra).unwrap();
            let replicas: Vec<Active> = replicas.into_iter().map(|(u, s)| active(u, s)).collect();
            let rates: Vec<f64> = interference.rates(&replicas).collect();
            for (&replica, &rate) in replicas.iter().zip(&rates) {
                prop_assert!(rate > 0.0 && rate <= interference.solo_rate(replica) && rate <= 1.0);
            }
            let used: f64 = replicas.iter().zip(&rates).map(|(replica, rate)| replica.effective() * rate).sum();
            prop_assert!(used <= 100.0 + 1e-9);
        }
    }
}
