//! The arrival processes of models.

use std::{time::Duration, vec};

use packhorse_cluster::Time;

use crate::{Arrivals, Rate, Scenario, random::Generator};

/// The arrival process of one model.
#[derive(Debug)]
pub(crate) enum ArrivalProcess {
    /// Gaps are drawn from a distribution and scaled by the rate over time.
    Random {
        generator: Generator,
        /// The coefficient of variation of the gaps; `None` is Poisson.
        variation: Option<f64>,
        rate: Rate,
        client_overhead: Duration,
        /// The last arrival.
        now: Time,
    },
    /// The arrivals of a trace.
    Recorded(vec::IntoIter<Time>),
}

impl ArrivalProcess {
    /// Returns the process of the `model`-th model. It has its own generator, so that it does not depend on the other models.
    pub(crate) fn new(
        arrivals: &Arrivals,
        model: usize,
        rate: &Rate,
        client_overhead: Duration,
        seed: u64,
    ) -> Self {
        let variation = match arrivals {
            Arrivals::Poisson => None,
            Arrivals::Gamma(variation) => Some(*variation),
            Arrivals::Trace(moments) => return Self::Recorded(moments[model].clone().into_iter()),
        };
        Self::Random {
            generator: Generator::new(seed, model as u64),
            variation,
            rate: rate.clone(),
            client_overhead,
            now: Time::ZERO,
        }
    }

    /// Returns the next arrival; `None` after the last one. Arrivals ascend.
    pub(crate) fn next(&mut self) -> Option<Time> {
        match self {
            Self::Recorded(moments) => moments.next(),
            Self::Random {
                generator,
                variation,
                rate,
                client_overhead,
                now,
            } => {
                let gap = match variation {
                    None => generator.exponential(),
                    Some(variation) => generator.gamma(*variation),
                };
                *now = rate.time_after(*now, gap)? + *client_overhead;
                Some(*now)
            }
        }
    }
}

/// Returns the arrival process of each model of a scenario, in its order.
pub(crate) fn arrival_processes(
    scenario: &Scenario,
    seed: u64,
) -> impl Iterator<Item = ArrivalProcess> {
    let simulation = &scenario.simulation;
    let workloads = scenario.workloads.iter().enumerate();
    workloads.map(move |(model, workload)| {
        ArrivalProcess::new(
            &simulation.arrivals,
            model,
            &workload.rate,
            simulation.client_overhead,
            seed,
        )
    })
}

#[cfg(test)]
mod tests {
    use std::iter;

    use packhorse_cluster::RequestsPerSecond;
    use proptest::prelude::*;

    use super::*;
    use crate::rate::tests::{at, integral, rates};

    #[test]
    fn the_work_of_a_client_lowers_its_rate() {
        let overhead = Duration::from_micros(308);
        let rate = Rate::constant(RequestsPerSecond::new(500.0).unwrap());
        let mut process = ArrivalProcess::new(&Arrivals::Poisson, 0, &rate, overhead, 1);
        let last = (0..50_000).filter_map(|_| process.next()).last().unwrap();
        // The thesis' clients reach 433 of 500 requests per second.
        assert!((50_000.0 / last.as_secs_f64() - 433.0).abs() < 5.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The number of Poisson arrivals in an interval is the integral of the rate, within six standard deviations.
        #[test]
        fn the_number_of_arrivals_in_an_interval_is_the_integral_of_the_rate(
            rate in rates(), seed in any::<u64>(), from in 0_u64..10_000, length in 1_u64..10_000,
        ) {
            let (from, until) = (at(from), at(from + length));
            let mut process = ArrivalProcess::new(&Arrivals::Poisson, 0, &rate, Duration::ZERO, seed);
            let arrivals = iter::from_fn(|| process.next());
            let arrived = arrivals.take_while(|&now| now < until).filter(|&now| now >= from).count();
            let expected = integral(&rate, from, until);
            prop_assert!((arrived as f64 - expected).abs() < 6.0 * expected.sqrt() + 6.0, "{arrived} for {expected}");
        }
    }
}
