//! When the requests of one model arrive.

use std::{time::Duration, vec};

use packhorse_cluster::Time;

use crate::{Arrivals, Rate, Scenario, random::Generator};

/// The arrivals of one model, one after the other.
#[derive(Debug)]
pub(crate) enum Source {
    /// Gaps by a distribution, stretched by the rate over time.
    Random {
        generator: Generator,
        /// Coefficient of variation of the gaps; `None` is Poisson.
        variation: Option<f64>,
        rate: Rate,
        client_overhead: Duration,
        now: Time,
    },
    Recorded(vec::IntoIter<Time>),
}

impl Source {
    /// The `model`-th model's; its generator is its own, so that models do not shift each other.
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

    /// The next arrival, not before the one before; `None` if there is none any more.
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
                *now = rate.after(*now, gap)? + *client_overhead;
                Some(*now)
            }
        }
    }
}

/// One per model of a scenario, in its order.
pub(crate) fn sources(scenario: &Scenario, seed: u64) -> impl Iterator<Item = Source> {
    let simulation = &scenario.simulation;
    let loads = scenario.workloads.iter().enumerate();
    loads.map(move |(model, load)| {
        Source::new(
            &simulation.arrivals,
            model,
            &load.rate,
            simulation.client_overhead,
            seed,
        )
    })
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::RequestsPerSecond;

    use super::*;

    #[test]
    fn a_client_reaches_the_rate_that_its_own_work_leaves_it() {
        let overhead = Duration::from_micros(308);
        let rate = Rate::constant(RequestsPerSecond::new(500.0).unwrap());
        let mut source = Source::new(&Arrivals::Poisson, 0, &rate, overhead, 1);
        let last = (0..50_000).filter_map(|_| source.next()).last().unwrap();
        // The thesis' clients reach 433 of 500 requests per second.
        assert!((50_000.0 / last.as_secs_f64() - 433.0).abs() < 5.0);
    }
}
