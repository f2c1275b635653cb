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
                *now = after(rate, *now, gap)? + *client_overhead;
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

/// When `requests` (a fraction, mostly) have come since `from`, at the rate over time. `None` if that is never.
fn after(rate: &Rate, from: Time, requests: f64) -> Option<Time> {
    let steps = rate.steps();
    let mut step = steps
        .partition_point(|step| step.0 <= from)
        .saturating_sub(1);
    let (mut from, mut left) = (from, requests);
    loop {
        let per_second = steps[step].1.get();
        let until = steps.get(step + 1).map(|next| next.0);
        let room = until.map(|until| until.saturating_since(from).as_secs_f64() * per_second);
        if let (Some(until), Some(room)) = (until, room)
            && room < left
        {
            left -= room;
            from = until;
            step += 1;
            continue;
        }
        let wait = Duration::try_from_secs_f64(left / per_second).ok()?;
        return Some(from + wait);
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::RequestsPerSecond;

    use super::*;

    fn rate(steps: &[(u64, f64)]) -> Rate {
        let rps = |rate| RequestsPerSecond::new(rate).unwrap();
        let mut rate = Rate::constant(rps(steps[0].1));
        for &(from, to) in &steps[1..] {
            assert!(rate.push(Time::ZERO + Duration::from_secs(from), rps(to)));
        }
        rate
    }

    #[test]
    fn a_gap_goes_through_the_steps_of_the_rate() {
        let at = |millis| Some(Time::ZERO + Duration::from_millis(millis));
        let steps = rate(&[(0, 2.0), (1, 0.0), (3, 4.0)]);
        assert_eq!(after(&steps, Time::ZERO, 1.0), at(500));
        // Two until second 1, none until second 3, the other two in half a second.
        assert_eq!(after(&steps, Time::ZERO, 4.0), at(3500));
        assert_eq!(after(&rate(&[(0, 2.0), (1, 0.0)]), Time::ZERO, 4.0), None);
    }

    #[test]
    fn a_client_reaches_the_rate_that_its_own_work_leaves_it() {
        let overhead = Duration::from_micros(308);
        let mut source = Source::new(&Arrivals::Poisson, 0, &rate(&[(0, 500.0)]), overhead, 1);
        let last = (0..50_000).filter_map(|_| source.next()).last().unwrap();
        // The thesis' clients reach 433 of 500 requests per second.
        assert!((50_000.0 / last.as_secs_f64() - 433.0).abs() < 5.0);
    }
}
