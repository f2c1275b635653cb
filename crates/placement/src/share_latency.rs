//! The time of a batch under a compute share, for policies that choose shares.

use packhorse_cluster::{ComputeShare, DeviceKind, LatencyModel, ModelId, Problem, Profile};
use packhorse_contention::{
    ComputeDemand, InssDevice, InssModel, InssWorkload, Interference, LocalRegression,
    RegressionPoint, inss_seconds,
};

use crate::PlanningOptions;

/// The shares that stand in for measurements where a profile has only the whole device, in percent.
const ASSUMED_SHARES: [f64; 5] = [20.0, 40.0, 60.0, 80.0, 100.0];

/// A device of which InSS' coefficients are not known: nothing is copied or launched in addition to the profile.
const UNKNOWN_DEVICE: InssDevice = InssDevice {
    bus_bytes_per_second: f64::INFINITY,
    launch: [0.0; 2],
};

/// The times of a model's batches under compute shares, by the latency model of [`packhorse_cluster::PolicyOptions::latency_model`].
pub(crate) enum ShareLatency<'a> {
    /// [`latency_under_share`].
    Profile(&'a Profile),
    /// InSS' model. Where the profile has no rows for shares, its points under shares follow from [`latency_under_share`]; where there are
    /// no measurements of interference ([`crate::IgniterCoefficients`]), neighbours have no effect.
    Inss(Box<(InssDevice, InssModel)>),
}

impl<'a> ShareLatency<'a> {
    pub(crate) fn new(
        options: &PlanningOptions,
        model: &ModelId,
        kind: &DeviceKind,
        profile: &'a Profile,
    ) -> Self {
        if options.policy.latency_model == LatencyModel::Profile {
            return Self::Profile(profile);
        }
        let measured = measured_points(profile);
        let coefficients = options.igniter_coefficients.as_ref();
        let known = coefficients.and_then(|known| known.inss(model, kind, &measured));
        let fitted = known.unwrap_or_else(|| {
            let alone = InssModel::without_interference(LocalRegression::new(measured)?);
            Ok((UNKNOWN_DEVICE, alone))
        });
        Self::Inss(Box::new(
            fitted.expect("a profile has rows, with times above 0"),
        ))
    }

    /// Returns the latencies of a model of a problem on a kind of device; `None` without a profile.
    pub(crate) fn of_problem(
        options: &PlanningOptions,
        problem: &'a Problem,
        model: &ModelId,
        kind: &DeviceKind,
    ) -> Option<Self> {
        let profile = problem.profiles.get(model, kind)?;
        Some(Self::new(options, model, kind, profile))
    }

    /// Returns the time of a batch that runs alone under a share in percent, in seconds. The share is above 0 and at most 100.
    pub(crate) fn seconds(&self, batch: u32, percent: f64) -> f64 {
        self.seconds_beside(batch, percent, &[])
    }

    /// Returns the time of a batch while neighbours compute too, each given with its batch size and its share in percent.
    pub(crate) fn seconds_beside(
        &self,
        batch: u32,
        percent: f64,
        neighbours: &[(&Self, u32, f64)],
    ) -> f64 {
        match self {
            Self::Profile(profile) => latency_under_share(profile, batch, percent),
            Self::Inss(fitted) => {
                let own = InssWorkload {
                    model: &fitted.1,
                    batch,
                    share: percent,
                };
                let others = neighbours.iter().filter_map(|(other, batch, share)| {
                    let Self::Inss(other) = other else {
                        return None;
                    };
                    Some(InssWorkload {
                        model: &other.1,
                        batch: *batch,
                        share: *share,
                    })
                });
                let all: Vec<_> = std::iter::once(own).chain(others).collect();
                inss_seconds(&fitted.0, &all)[0]
            }
        }
    }
}

/// Returns the measured batches of a profile; under assumed shares where only one share was measured.
fn measured_points(profile: &Profile) -> Vec<RegressionPoint> {
    let has_shares = profile.whole().len() < profile.rows().len();
    let points = |batch: u32, share: f64, seconds: f64| RegressionPoint {
        batch,
        share,
        seconds,
    };
    if has_shares {
        let rows = profile.rows().iter();
        let point = rows.map(|row| {
            points(
                row.batch_size,
                row.compute_share.get(),
                row.latency.as_secs_f64(),
            )
        });
        return point.collect();
    }
    let rows = profile.whole().iter();
    let assumed = rows.flat_map(|row| {
        let batch = row.batch_size;
        ASSUMED_SHARES.map(|share| points(batch, share, latency_under_share(profile, batch, share)))
    });
    assumed.collect()
}

/// Returns the time of a batch that runs alone under a share in percent, in seconds. The share is above 0 and at most 100. The time is
/// measured if the profile has rows for shares ([`Profile::latency_under`]). Below the smallest measured share, which normally is the
/// whole device, it follows from [`Interference::solo_rate`].
pub(crate) fn latency_under_share(profile: &Profile, batch: u32, percent: f64) -> f64 {
    let share = ComputeShare::new(percent).expect("policies give shares of 1 to 100 %");
    if let Some(measured) = profile.latency_under(batch, share) {
        return measured.as_secs_f64();
    }
    let smallest = profile.rows()[profile.rows().len() - 1].compute_share;
    let measured = profile.latency_under(batch, smallest);
    let measured = measured.expect("its share is measured").as_secs_f64();
    let rate =
        |share| Interference::default().solo_rate(ComputeDemand::new(profile, batch, Some(share)));
    measured * rate(smallest) / rate(share)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use packhorse_cluster::ProfileTable;

    use super::*;

    fn latency_by(model: LatencyModel, rows: &str, batch: u32, percent: f64) -> f64 {
        let text = format!("{}\n{rows}", ProfileTable::CSV_HEADER);
        let table = ProfileTable::from_csv(&text).unwrap();
        let (id, kind, profile) = table.iter().next().unwrap();
        let mut options = PlanningOptions::default();
        options.policy.latency_model = model;
        ShareLatency::new(&options, id, kind, profile).seconds(batch, percent)
    }

    #[test]
    fn the_latency_model_is_an_option() {
        // 2 ms a row at any batch size, all of it in proportion to the share.
        let mut rows = String::new();
        for (batch, share) in [(1, 100), (2, 100), (4, 100), (1, 50), (2, 50), (4, 50)] {
            writeln!(rows, "m,k,{batch},{share},{},,,,,", 200 * batch / share).unwrap();
        }
        for model in LatencyModel::ALL {
            let seconds = |batch, percent| latency_by(model, &rows, batch, percent);
            assert!((seconds(2, 50.0) / 0.008 - 1.0).abs() < 1e-3, "{model}");
            assert!((seconds(3, 100.0) / 0.006 - 1.0).abs() < 1e-3, "{model}");
        }
        // Outside the measurements the profile goes on in proportion, the regression with the slope of its logarithm.
        let root = "m,k,1,,10,,,,,\nm,k,4,,20,,,,,\nm,k,16,,40,,,,,\n";
        let at_64 = |model| latency_by(model, root, 64, 100.0);
        assert!((at_64(LatencyModel::Profile) - 0.160).abs() < 1e-9);
        assert!((at_64(LatencyModel::Inss) / 0.080 - 1.0).abs() < 1e-2);
    }

    #[test]
    fn below_the_smallest_measured_share_the_exponent_applies() {
        let check = |rows: &str, percent, expected: f64| {
            let text = format!("{}\n{rows}", ProfileTable::CSV_HEADER);
            let table = ProfileTable::from_csv(&text).unwrap();
            let (_, _, profile) = table.iter().next().unwrap();
            let seconds = latency_under_share(profile, 1, percent);
            assert!((seconds - expected).abs() < 1e-9, "{seconds}");
        };
        // (80 / 40)^1.6 = 3.0314331330207964 times as long; nothing lost above the utilisation of 80.
        let whole = "m,k,1,,10,,,,,80\n";
        check(whole, 40.0, 0.030_314_331_330_208);
        check(whole, 90.0, 0.010);
        // 50 % was measured at 15 ms; from there to 25 % another factor of 2^1.6.
        let shared = "m,k,1,,10,,,,,80\nm,k,1,50,15,,,,,\n";
        check(shared, 50.0, 0.015);
        check(shared, 25.0, 0.015 * 3.031_433_133_020_796);
    }
}
