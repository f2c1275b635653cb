use packhorse_cluster::{ArtifactDigest, Dim, ProfileTable, TensorSpec};

use super::*;

fn profile() -> Profile {
    let csv = format!(
        "{}\na,T4,1,,4,,100,,,50\na,T4,8,,18,,100,,,50\n",
        ProfileTable::CSV_HEADER
    );
    let table = ProfileTable::from_csv(&csv).unwrap();
    table.iter().next().unwrap().2.clone()
}

fn replica(model: &str, rows: f64, busy: f64, slowdown: f64) -> ReplicaObservation {
    ReplicaObservation {
        model: model.parse().unwrap(),
        compute_share: None,
        batches: 60,
        mean_rows: rows,
        busy,
        slowdown,
    }
}

fn observed(periods: &[&[ReplicaObservation]]) -> BTreeMap<u32, Observed> {
    let kind: DeviceKind = "T4".parse().unwrap();
    let devices: Vec<DeviceObservation> = periods
        .iter()
        .map(|replicas| DeviceObservation {
            kind: kind.clone(),
            replicas: replicas.to_vec(),
        })
        .collect();
    let times = (1_u64..).map(|second| Time::from_nanos(second * 1_000_000_000));
    let model: ModelId = "a".parse().unwrap();
    let mut all = sightings(times.zip(&devices));
    observe(&kind, &profile(), &all.remove(&model).unwrap_or_default())
}

/// The time of a batch of 8 rows with this ratio, and with that of batches without neighbours.
fn batch_time(ratio: f64, alone: Option<f64>) -> BatchTime {
    BatchTime {
        kind: "T4".parse().unwrap(),
        batch_size: 8,
        profile: Duration::from_millis(18),
        source: ProfileSource::Measured,
        learned: Some(LearnedTime {
            batches: MIN_BATCHES,
            age: MAX_AGE,
            ratio,
            alone,
        }),
    }
}

fn program(shape: Vec<Dim>) -> Program {
    Program {
        model: "a".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size: 8,
        inputs: vec![TensorSpec::new(
            "x",
            packhorse_cluster::Datatype::Fp32,
            shape,
        )],
        outputs: Vec::new(),
    }
}

#[test]
fn batches_count_for_the_nearest_measured_size() {
    let periods = observed(&[
        &[replica("a", 1.5, 0.2, 1.0)],
        &[replica("a", 6.0, 0.6, 1.5), replica("b", 8.0, 0.4, 1.2)],
        &[replica("a", 8.0, 0.2, 1.0), replica("b", 8.0, 0.01, 1.0)],
    ]);
    let (one, eight) = (periods[&1], periods[&8]);
    assert_eq!((one.batches, eight.batches), (60, 120));
    assert_eq!(eight.last, Time::from_nanos(3_000_000_000));
    // 0.8 of busy time for work of 0.4 + 0.2.
    assert!((eight.all.ratio().unwrap() - 0.8 / 0.6).abs() < 1e-9);
    // A neighbour that is hardly active is none.
    assert!((eight.alone.ratio().unwrap() - 1.0).abs() < 1e-9);
    assert_eq!(periods.len(), 2);
}

#[test]
fn impossible_observations_teach_nothing() {
    let periods = observed(&[&[
        replica("a", 0.5, 0.2, 1.0),
        replica("a", 8.0, 0.2, 0.0),
        replica("a", 8.0, 0.2, f64::INFINITY),
        replica("a", 8.0, 0.2, f64::NAN),
    ]]);
    assert!(periods.is_empty());
}

#[test]
fn a_quarter_more_or_less_contradicts_a_measured_profile() {
    for (ratio, contradicts) in [(1.0, false), (1.25, false), (1.26, true), (0.74, true)] {
        let time = batch_time(ratio, None);
        assert_eq!(time.contradicts_profile(), contradicts, "{ratio}");
    }
    let estimated = BatchTime {
        source: ProfileSource::Estimated,
        ..batch_time(2.0, None)
    };
    assert!(!estimated.contradicts_profile());
    for (batches, age) in [
        (MIN_BATCHES - 1, MAX_AGE),
        (MIN_BATCHES, MAX_AGE + Duration::from_secs(1)),
    ] {
        let mut time = batch_time(2.0, None);
        time.learned = time.learned.map(|learned| LearnedTime {
            batches,
            age,
            ..learned
        });
        assert!(!time.contradicts_profile(), "{batches} {age:?}");
    }
    let learned = batch_time(1.5, None).learned_time();
    assert_eq!(learned, Some(Duration::from_millis(27)));
}

#[test]
fn the_cause_of_a_contradiction_follows_from_neighbours_and_inputs() {
    let fixed = program(vec![Dim::Any, Dim::Fixed(4)]);
    let variable = program(vec![Dim::Any, Dim::Any]);
    for (ratio, alone, program, cause) in [
        (
            1.5,
            Some(1.1),
            &fixed,
            ContradictionCause::Neighbours(Some(1.1)),
        ),
        (1.5, None, &fixed, ContradictionCause::Neighbours(None)),
        (1.5, Some(1.4), &fixed, ContradictionCause::SlowerDevice),
        (1.5, Some(1.4), &variable, ContradictionCause::LongerInputs),
        (0.5, Some(0.5), &variable, ContradictionCause::ShorterInputs),
        (0.5, None, &fixed, ContradictionCause::FasterDevice),
    ] {
        let found = batch_time(ratio, alone).contradiction_cause(program);
        assert_eq!(found, Some(cause));
    }
    assert_eq!(batch_time(1.1, None).contradiction_cause(&fixed), None);
}
