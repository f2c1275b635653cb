//! A device whose node has not all weights in memory: those that were used least recently leave it, and are loaded from files for requests that cannot wait so
//! long.

use super::{pools::Devices, *};
use crate::Refusal;

/// The time to copy weights from the memory of the node.
const COPY: Duration = Duration::from_millis(70);

/// The time in which each request is due.
const SLO: Duration = Duration::from_millis(200);

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    models: u32,
    /// The models with room on the device, and in the memory of its node.
    room: u32,
    host: usize,
    /// The time to load a model from its file.
    load: Duration,
    /// Requests per second of each model.
    rates: fn(u32) -> f64,
    seconds: u64,
    /// True if those who are refused come back when they are told.
    come_back: bool,
    seed: u64,
}

/// The outcome of a run.
#[derive(Debug, Default)]
struct Outcome {
    sent: Vec<u64>,
    in_time: Vec<u64>,
    /// The longest time in which somebody asked for a model that was in its file only.
    longest_cold: Duration,
    /// Those who came back when they were told, and those who were refused again.
    came_back: u64,
    refused_again: u64,
}

impl Outcome {
    fn percent_in_time(&self) -> u64 {
        self.in_time.iter().sum::<u64>() * 100 / self.sent.iter().sum::<u64>()
    }
}

impl Run {
    fn run(self) -> Outcome {
        let times: &[u64] = &[5, 6, 7, 8];
        let all = vec![times; self.models as usize];
        let mut devices = Devices::new(1, u64::from(self.room), &all, COPY);
        let mut random = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut wait = |rate: f64| {
            for shift in [13, -7_i32, 17] {
                random ^= if shift > 0 {
                    random << shift
                } else {
                    random >> -shift
                };
            }
            let unit = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            Duration::from_secs_f64(-unit.ln() / rate)
        };
        let models = self.models as usize;
        let mut next: Vec<Time> = (0..self.models)
            .map(|model| Time::ZERO + wait((self.rates)(model)))
            .collect();
        let mut outcome = Outcome {
            sent: vec![0; models],
            in_time: vec![0; models],
            ..Outcome::default()
        };
        let mut warm: Vec<u32> = (self.room..self.models).collect();
        let mut asked: Vec<Option<Time>> = vec![None; models];
        let mut back: Vec<(Time, u32)> = Vec::new();
        let (mut seen, mut refused) = (0, 0);
        let mut sent_for: Vec<u32> = Vec::new();
        for millis in 0..self.seconds * 1000 {
            let now = at(millis);
            devices.pass_until(now);
            let away = devices.away();
            warm.retain(|model| away.contains(model));
            warm.extend(devices.evicted[seen..].iter().filter(|m| away.contains(m)));
            seen = devices.evicted.len();
            while warm.len() > self.host {
                devices.keep(ReplicaKey(warm.remove(0)), Some(self.load));
            }
            for model in 0..self.models {
                if !away.contains(&model)
                    && let Some(since) = asked[model as usize].take()
                {
                    outcome.longest_cold = outcome.longest_cold.max(now.saturating_since(since));
                }
            }
            let mut come: Vec<(u32, bool)> = Vec::new();
            back.retain(|(when, model)| {
                if *when <= now {
                    come.push((*model, true));
                }
                *when > now
            });
            for model in 0..self.models {
                while next[model as usize] <= now {
                    next[model as usize] += wait((self.rates)(model));
                    come.push((model, false));
                }
            }
            for (model, again) in come {
                outcome.sent[model as usize] += u64::from(!again);
                sent_for.push(model);
                devices.arrive(model, SLO);
                outcome.came_back += u64::from(again);
                for (_, refusal) in &devices.refused[refused..] {
                    let Refusal::Loading { retry_after } = *refusal else {
                        panic!("{refusal:?}");
                    };
                    outcome.refused_again += u64::from(again);
                    asked[model as usize].get_or_insert(now);
                    if self.come_back && !again {
                        // In whole seconds.
                        let after = Duration::from_secs(retry_after.as_secs() + 1);
                        back.push((now + after, model));
                    }
                }
                refused = devices.refused.len();
            }
        }
        let end = at(self.seconds * 1000);
        for since in asked.into_iter().flatten() {
            outcome.longest_cold = outcome.longest_cold.max(end.saturating_since(since));
        }
        devices.pass_until(end + Duration::from_secs(10));
        for (_, model, requests) in &devices.computed {
            outcome.in_time[*model as usize] += *requests as u64;
        }
        outcome
    }
}

/// Six models with two requests per second each, that are loaded from files in longer than anybody waits.
const EVEN: Run = Run {
    models: 6,
    room: 3,
    host: 1,
    load: Duration::from_millis(700),
    rates: |_| 2.0,
    seconds: 120,
    come_back: false,
    seed: 1,
};

#[test]
fn loads_for_refused_requests_cost_those_in_memory_little() {
    for (room, host) in [(1, 1), (2, 1), (3, 0), (3, 1)] {
        let run = Run { room, host, ..EVEN };
        let in_time = run.run().percent_in_time();
        // Of six models alike so many are in memory, and if that cost nothing, so many requests would be in time.
        let in_memory = (u64::from(room) + host as u64) * 100 / 6;
        assert!(
            in_time * 100 >= in_memory * 75,
            "{in_time} % of at most {in_memory} %"
        );
    }
}

#[test]
fn who_comes_back_when_told_is_served() {
    for (room, seed) in [(1, 1), (2, 2), (3, 3)] {
        let outcome = Run {
            room,
            seed,
            come_back: true,
            ..EVEN
        }
        .run();
        assert!(outcome.came_back > 100);
        assert_eq!(outcome.refused_again, 0, "{outcome:?}");
        assert!(outcome.percent_in_time() >= 90, "{outcome:?}");
    }
}

#[test]
fn a_load_for_refused_requests_waits_while_requests_wait_for_all_residents_but_not_for_ever() {
    let times: &[u64] = &[40];
    let mut devices = Devices::new(1, 2, &[times; 3], ms(1));
    devices.keep(ReplicaKey(2), Some(ms(100)));
    // Something always waits for both.
    let mut begun = None;
    for millis in 0..4000 {
        devices.pass_until(at(millis));
        if millis % 20 == 0 {
            devices.arrive(u32::from(millis % 40 == 0), ms(400));
        }
        if millis == 200 {
            devices.arrive(2, ms(50));
            assert_eq!(devices.refused.len(), 1);
        }
        if begun.is_none() && devices.loads.contains(&2) {
            begun = Some(millis);
        }
    }
    let begun = begun.expect("it is loaded");
    assert!((1700..2500).contains(&begun), "it began at {begun} ms");
}

#[test]
fn a_load_for_refused_requests_takes_the_room_of_who_was_not_used_for_long_without_a_pause() {
    let times: &[u64] = &[5];
    let mut devices = Devices::new(1, 2, &[times; 4], ms(1));
    for model in [2, 3] {
        devices.keep(ReplicaKey(model), Some(ms(700)));
    }
    devices.pass_until(at(20_000));
    for model in [2, 3] {
        devices.arrive(model, ms(50));
    }
    let told: Vec<Refusal> = { devices.refused.iter() }.map(|(_, told)| *told).collect();
    let loading = |retry_after| Refusal::Loading { retry_after };
    assert_eq!(told, [loading(ms(705)), loading(ms(1405))]);
    devices.pass_until(at(21_399));
    assert_eq!(devices.away().len(), 2);
    assert_eq!(devices.loads, [2, 3]);
    devices.pass_until(at(21_400));
    devices.arrive(3, ms(50));
    devices.pass_until(at(21_500));
    assert_eq!(devices.computed.last(), Some(&(at(21_405), 3, 1)));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn no_model_that_is_asked_for_stays_in_its_file_for_ever(
        models in 2..9_u32,
        room in 1..4_u32,
        host in 0..3_usize,
        load in 20..2000_u64,
        rate in 1..80_u32,
        come_back: bool,
        seed: u64,
    ) {
        let rates: fn(u32) -> f64 = match rate % 4 {
            0 => |_| 2.0,
            1 => |_| 30.0,
            2 => |model| 60.0 / f64::from(model + 1),
            _ => |model| if model == 0 { 150.0 } else { 0.3 },
        };
        let run = Run {
            models,
            room: room.min(models),
            host,
            load: ms(load),
            rates,
            seconds: 60,
            come_back,
            seed,
        };
        let outcome = run.run();
        // Each of the others is loaded before, after a pause, and waits for room before that.
        let cycle = ms(load) * (1 + 16) + ms(load * 3).max(ms(1000));
        proptest::prop_assert!(outcome.longest_cold <= cycle * models, "{:?} {:?}", run, outcome);
    }
}
