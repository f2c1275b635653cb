use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{MarkKind, sample::ModelSample, segment};

/// The limit that the gateway has.
const LIMIT: usize = 64 << 20;

fn model(number: u64) -> Series {
    Series::Model(format!("model-{number}:1").parse().unwrap())
}

/// Returns a block in which so many requests came for a model, each answered after this time.
fn block(slot: u64, offered: u64, latency_ms: u64) -> Block {
    let mut sample = ModelSample {
        offered,
        in_time: offered,
        ..ModelSample::default()
    };
    sample
        .latencies
        .add(Duration::from_millis(latency_ms), offered);
    Block {
        begin_ms: slot * FINE_MS,
        covered_ms: FINE_MS,
        generation: 1,
        samples: BTreeMap::from([(model(1), Sample::Model(sample))]),
        marks: Vec::new(),
    }
}

fn sample(point: &Point) -> &ModelSample {
    match &point.sample {
        Sample::Model(sample) => sample,
        Sample::Device(_) => panic!("{point:?}"),
    }
}

proptest! {
    #[test]
    fn steps_of_any_length_have_the_sums_and_no_step_is_made_up(
        // An hour at most, with gaps.
        came in prop::collection::vec(prop::option::of((0_u64..500, 1_u64..2000)), 1..350),
        step in prop::sample::select(vec![10_000_u64, 20_000, 60_000, 300_000, 3_600_000]),
    ) {
        let first = 1_000_000;
        let mut history = History::new(LIMIT);
        let (mut offered, mut known) = (BTreeMap::new(), BTreeMap::new());
        for (slot, one) in (first..).zip(&came) {
            let Some((count, latency_ms)) = one else {
                continue;
            };
            history.add(&block(slot, *count, *latency_ms));
            let begin = slot * FINE_MS / step * step;
            *offered.entry(begin).or_insert(0) += count;
            *known.entry(begin).or_insert(0) += FINE_MS;
        }
        let points = history.points(|series| *series == model(1), (0, u64::MAX), step);
        let sums: BTreeMap<u64, u64> = points.iter().map(|p| (p.begin_ms, sample(p).offered)).collect();
        prop_assert_eq!(&sums, &offered);
        let covered: BTreeMap<u64, u64> = points.iter().map(|p| (p.begin_ms, p.covered_ms)).collect();
        prop_assert_eq!(&covered, &known);
        for point in &points {
            prop_assert_eq!(sample(point).latencies.total(), sample(point).offered);
        }
    }

    #[test]
    fn whatever_comes_fits_into_the_limit(
        samples in prop::collection::vec((0_u64..50, 0_u64..100_000, 1_u64..100_000), 1..200),
        limit in 100_usize..4000,
    ) {
        let mut history = History::new(limit);
        for (slot, (of, offered, latency_ms)) in (1000..).zip(samples) {
            let mut one = block(slot, offered, latency_ms);
            let sample = one.samples.remove(&model(1)).unwrap();
            one.samples.insert(model(of), sample);
            history.add(&one);
            let rings = [&history.fine, &history.minutes];
            let bytes = rings.into_iter().flat_map(|ring| &ring.blocks);
            let bytes: usize = bytes.map(|(_, bytes)| bytes.len()).sum();
            prop_assert_eq!(history.bytes(), bytes);
            prop_assert!(bytes <= limit);
        }
    }
}

#[test]
fn quantiles_of_an_hour_are_those_of_its_requests_and_not_a_mean_of_quantiles() {
    let mut history = History::new(LIMIT);
    for slot in 0..360 {
        // One ten seconds of an hour are slow, and have as many requests as all others together.
        let (count, latency_ms) = if slot == 100 { (3590, 1000) } else { (10, 10) };
        history.add(&block(slot, count, latency_ms));
    }
    let points = history.points(|_| true, (0, FINE_SPAN_MS), FINE_SPAN_MS);
    let [point] = &points[..] else {
        panic!("{points:?}");
    };
    let quantile = |p| sample(point).latencies.quantile(p).unwrap().as_millis();
    assert!(quantile(0.45) < 12 && quantile(0.55) > 870, "{points:?}");
}

#[test]
fn a_restart_goes_on_with_what_its_files_have_and_leaves_a_gap() {
    let mut before = History::new(LIMIT);
    let (mut fine, mut minutes) = (
        segment::head(10_000).to_vec(),
        segment::head(60_000).to_vec(),
    );
    for slot in 600..=615 {
        let mut one = block(slot, 7, 30);
        one.marks = vec![Mark::new(slot * FINE_MS, MarkKind::Plan, None, "plan 2")];
        fine.extend(segment::frame(&one).unwrap());
        for minute in before.add(&one) {
            minutes.extend(segment::frame(&minute).unwrap());
        }
    }
    let mut after = History::new(LIMIT);
    for minute in segment::blocks(&minutes, 60_000) {
        after.restore_minute(&minute);
    }
    let mut made = Vec::new();
    for block in segment::blocks(&fine, 10_000) {
        made.extend(after.add(&block));
    }
    assert_eq!(made, []);
    // It is down from within the third minute until the fifth.
    let made = after.add(&block(624, 9, 30));
    let [third] = &made[..] else {
        panic!("{made:?}");
    };
    assert_eq!(
        (third.begin_ms, third.covered_ms),
        (612 * FINE_MS, 4 * FINE_MS)
    );
    let points = after.points(|_| true, (0, u64::MAX), MINUTE_MS);
    let offered = points
        .iter()
        .map(|p| (p.begin_ms / FINE_MS, sample(p).offered));
    let offered: Vec<(u64, u64)> = offered.collect();
    assert_eq!(offered, [(600, 42), (606, 42), (612, 28), (624, 9)]);
    assert_eq!(after.marks(603 * FINE_MS, 605 * FINE_MS).len(), 2);
}

#[test]
fn a_block_that_is_not_later_changes_nothing_and_days_are_forgotten() {
    let mut history = History::new(LIMIT);
    history.add(&block(10, 5, 5));
    history.add(&block(10, 5, 5));
    history.add(&block(3, 5, 5));
    let all = |history: &History| history.points(|_| true, (0, u64::MAX), MINUTE_MS);
    assert_eq!(all(&history).len(), 1);
    let slots_of_a_day = SPAN_MS / FINE_MS;
    history.add(&block(slots_of_a_day, 1, 5));
    assert_eq!(all(&history).len(), 2);
    history.add(&block(slots_of_a_day + 12, 1, 5));
    history.add(&block(slots_of_a_day + 18, 1, 5));
    let points = all(&history);
    assert!(
        points.iter().all(|point| point.begin_ms >= SPAN_MS),
        "{points:?}"
    );
    assert_eq!(history.first_ms(), Some(SPAN_MS));
}

#[test]
fn versions_that_come_and_go_take_no_more_names_than_are_kept() {
    let mut history = History::new(LIMIT);
    for slot in 0..2 * MAX_SERIES as u64 {
        let mut one = block(slot * 6, 1, 1);
        let sample = one.samples.remove(&model(1)).unwrap();
        one.samples.insert(model(slot), sample);
        history.add(&one);
        assert!(history.names.numbers.len() <= MAX_SERIES);
    }
    let newest = model(2 * MAX_SERIES as u64 - 1);
    assert!(history.knows(|series| *series == newest));
    assert!(!history.knows(|series| *series == model(1)));
}

/// Returns a block in which a thousand models get up to 270 requests/s each, with latencies over three octaves and more.
fn busy(slot: u64, models: u64) -> Block {
    let mut all = Block {
        begin_ms: slot * FINE_MS,
        covered_ms: FINE_MS,
        ..Block::default()
    };
    for number in 0..models {
        let mut sample = ModelSample {
            late: (number + slot) % 17,
            refused: number % 5,
            failed: number % 3,
            ..ModelSample::default()
        };
        // Twenty places on a scale of 1.2, the middle ones with the most.
        for place in 0..20_i32 {
            let distance = u64::from(place.abs_diff(8));
            let count = (1 + (number * 31 + slot * 7) % 90) * 6 / (1 + distance);
            let latency = 2e-3 * (1.0 + number as f64 / 100.0) * 1.2_f64.powi(place);
            sample
                .latencies
                .add(Duration::from_secs_f64(latency), count);
            sample.in_time += count;
        }
        sample.offered = sample.in_time + sample.missed();
        all.samples.insert(model(number), Sample::Model(sample));
    }
    all
}

#[test]
fn a_day_of_a_thousand_busy_models_fits() {
    let ten_seconds: Vec<Block> = (0..6).map(|slot| busy(slot, 1000)).collect();
    let mut minute = Block::default();
    for block in &ten_seconds {
        minute.merge(block);
    }
    let mut history = History::new(usize::MAX);
    let minutes = SPAN_MS / MINUTE_MS;
    for number in 0..minutes {
        minute.begin_ms = number * MINUTE_MS;
        history.restore_minute(&minute);
    }
    let begin = minutes - FINE_SPAN_MS / MINUTE_MS;
    for number in 0..FINE_SPAN_MS / FINE_MS {
        let mut block = ten_seconds[number as usize % 6].clone();
        block.begin_ms = begin * MINUTE_MS + number * FINE_MS;
        history.add(&block);
    }
    assert_eq!(history.minutes.blocks.len() as u64, minutes);
    assert_eq!(history.fine.blocks.len() as u64, FINE_SPAN_MS / FINE_MS);
    println!("{:.1} MiB", history.bytes() as f64 / f64::from(1 << 20));
    assert!(history.bytes() <= LIMIT, "{}", history.bytes());
    let points = history.points(|series| *series == model(999), (0, SPAN_MS), MINUTE_MS);
    assert_eq!(points.len() as u64, minutes);
}
