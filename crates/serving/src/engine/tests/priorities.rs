//! Models of different priorities on one device: those of the higher one lose nothing to those of the lower one that they would not lose without them.

use super::{
    pools::{Devices, LIMITS},
    properties::Random,
    *,
};

/// Returns a pool of one device with all these models, whose batches take these times and which have these priorities.
fn pool(models: &[(&[u64], u32)]) -> Devices {
    let times: Vec<&[u64]> = models.iter().map(|(times, _)| *times).collect();
    let mut devices = Devices::new(1, times.len() as u64, &times, ms(1));
    for (number, (_, priority)) in (0..).zip(models) {
        devices.handle(updated(ModelKey(number), *priority));
    }
    devices
}

fn updated(model: ModelKey, priority: u32) -> Event {
    Event::ModelUpdated {
        model,
        limits: LIMITS,
        priority: Priority::new(priority).unwrap(),
    }
}

#[test]
fn where_not_all_can_be_in_time_the_higher_priority_goes_first() {
    let (slow, fast): (&[u64], &[u64]) = (&[30], &[10]);
    for (priority, computed) in [(5, [0, 2]), (6, [0, 1])] {
        let mut devices = pool(&[(fast, 5), (slow, priority), (fast, 5)]);
        devices.arrive(0, ms(100));
        // Only one of these is in time.
        devices.arrive(1, ms(45));
        devices.arrive(2, ms(35));
        devices.pass_until(at(100));
        assert_eq!(devices.models_computed(), computed, "{priority}");
    }
}

#[test]
fn a_long_batch_of_a_lower_priority_gives_way_to_who_would_be_late_behind_it() {
    let (long, short): (&[u64], &[u64]) = (&[100], &[10]);
    // Neither is urgent, and the long one comes nearest to its best rate.
    for (priority, allowed, computed) in [
        (5, 90, [0, 1].as_slice()),
        (6, 90, &[0, 2, 1]),
        // It is in time behind the long one.
        (6, 200, &[0, 1, 2]),
    ] {
        let mut devices = pool(&[(short, 5), (long, 5), (&[10, 11], priority)]);
        devices.arrive(0, ms(500));
        devices.arrive(1, ms(500));
        devices.arrive(2, ms(allowed));
        devices.pass_until(at(500));
        assert_eq!(devices.models_computed(), computed, "{priority}, {allowed}");
    }
}

#[test]
fn a_changed_priority_counts_for_what_waits() {
    let (slow, fast): (&[u64], &[u64]) = (&[30], &[10]);
    let mut devices = pool(&[(fast, 5), (slow, 5), (fast, 5)]);
    devices.arrive(0, ms(100));
    devices.arrive(1, ms(45));
    devices.arrive(2, ms(35));
    devices.handle(updated(ModelKey(1), 6));
    devices.pass_until(at(100));
    assert_eq!(devices.models_computed(), [0, 1]);
}

#[test]
fn weights_of_a_lower_priority_make_room_first_and_are_copied_last() {
    let times: &[u64] = &[2];
    let mut devices = Devices::new(1, 4, &[times; 8], ms(10));
    for model in [0, 7] {
        devices.handle(updated(ModelKey(model), 7));
    }
    // The first model was not used for the longest time.
    for model in [0, 1, 2, 3] {
        devices.arrive(model, ms(100));
        devices.pass_until(devices.now() + ms(5));
    }
    for (model, allowed) in [(4, 200), (5, 200), (6, 300), (7, 400)] {
        devices.arrive(model, ms(allowed));
    }
    devices.pass_until(at(500));
    assert_eq!(devices.expired, []);
    // Two copies were under way when the later ones came.
    assert_eq!(devices.loads, [4, 5, 7, 6]);
    assert_eq!(devices.evicted, [1, 2, 3, 4]);
}

/// A model of a random history.
#[derive(Clone, Debug)]
struct RandomModel {
    times: Vec<u64>,
    priority: u32,
    /// The mean time between its requests, and the time that these have, in milliseconds.
    gap: u64,
    allowed: u64,
}

/// Returns the models of a random history, with different priorities, that of the highest one first.
fn random_models(random: &mut Random) -> Vec<RandomModel> {
    let models = (0..2 + random.small(4)).map(|number| {
        let (fixed, per_row) = (1 + random.below(20), 1 + random.below(4));
        let times: Vec<u64> = (1..=8).map(|rows| fixed + per_row * rows).collect();
        RandomModel {
            gap: 1 + random.below(60),
            allowed: 3 * times[7] + random.below(200),
            priority: 9 - number,
            times,
        }
    });
    models.collect()
}

/// Returns the number of requests of each model, and of those that were lost, in four seconds in which the requests of the seed come for these models.
fn run(models: &[RandomModel], seed: u64) -> Vec<(usize, usize)> {
    let all: Vec<(&[u64], u32)> = models.iter().map(|m| (&m.times[..], m.priority)).collect();
    let mut devices = pool(&all);
    let mut arrivals = Vec::new();
    for (number, model) in (0..).zip(models) {
        let mut random = Random(seed + u64::from(number));
        let mut time = 0;
        while time < 4000 {
            time += 1 + random.below(2 * model.gap);
            arrivals.push((time, number));
        }
    }
    arrivals.sort_unstable();
    for &(time, number) in &arrivals {
        devices.pass_until(at(time));
        devices.arrive(number, ms(models[number as usize].allowed));
    }
    devices.pass_until(at(10_000));
    let mut counts = vec![(0, 0); models.len()];
    for (_, number) in &arrivals {
        counts[*number as usize].0 += 1;
    }
    for RequestKey(request) in devices.expired {
        let (_, number) = arrivals[usize::try_from(request).unwrap()];
        counts[number as usize].1 += 1;
    }
    counts
}

/// The outcome of random histories.
#[derive(Debug, Default)]
struct Outcome {
    histories: usize,
    /// The requests of the models that lose nothing without the others.
    requests: usize,
    /// Those of them that are lost beside the others.
    lost: usize,
    /// Those that are lost if all models have one priority.
    lost_as_equals: usize,
}

/// Runs histories whose first models, so many of all, lose nothing without the others, even if their requests had less time by a batch of these: the device does not
/// interrupt a batch.
fn lost_to_lower_ones(higher: impl Fn(&mut Random, usize) -> usize) -> Outcome {
    let mut sum = Outcome::default();
    for seed in 0..400 {
        let mut random = Random(seed);
        let models = random_models(&mut random);
        let higher = higher(&mut random, models.len());
        let longest = models[higher..].iter().map(|model| model.times[7]).max();
        let mut alone = models[..higher].to_vec();
        for model in &mut alone {
            model.allowed = model.allowed.saturating_sub(longest.unwrap());
        }
        if run(&alone, seed).iter().any(|(_, lost)| *lost > 0) {
            continue;
        }
        let together = run(&models, seed);
        let mut equals = models.clone();
        for model in &mut equals {
            model.priority = 5;
        }
        let as_equals = run(&equals, seed);
        sum.histories += 1;
        sum.requests += together[..higher].iter().map(|(all, _)| all).sum::<usize>();
        sum.lost += together[..higher]
            .iter()
            .map(|(_, lost)| lost)
            .sum::<usize>();
        sum.lost_as_equals += as_equals[..higher]
            .iter()
            .map(|(_, lost)| lost)
            .sum::<usize>();
    }
    sum
}

#[test]
fn the_highest_priority_loses_nothing_to_lower_ones() {
    let sum = lost_to_lower_ones(|_, _| 1);
    println!("{sum:?}");
    assert!(sum.histories > 200 && sum.lost_as_equals > 1000, "{sum:?}");
    assert_eq!(sum.lost, 0, "{sum:?}");
}

#[test]
fn several_higher_priorities_lose_next_to_nothing_to_lower_ones() {
    let sum = lost_to_lower_ones(|random, models| 1 + random.small(models as u32 - 1) as usize);
    println!("{sum:?}");
    assert!(sum.histories > 100 && sum.lost_as_equals > 1000, "{sum:?}");
    // A batch of one changes when those of the others are computed.
    assert!(sum.lost * 1000 <= sum.requests, "{sum:?}");
}
