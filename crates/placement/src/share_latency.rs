//! The time of a batch under a compute share, for policies that choose shares.

use packhorse_cluster::{ComputeShare, Profile};
use packhorse_contention::{ComputeDemand, Interference};

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
    use packhorse_cluster::ProfileTable;

    use super::*;

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
