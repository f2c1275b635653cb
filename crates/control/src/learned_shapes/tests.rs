use packhorse_cluster::{ArtifactDigest, Datatype, Dim, TensorSpec, TypicalShapes};
use proptest::prelude::*;

use super::*;

const PERIOD: Duration = Duration::from_secs(5);

fn program() -> Program {
    Program {
        model: "m".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size: 8,
        inputs: vec![TensorSpec {
            max_shape: Some(vec![Dim::Any, Dim::Fixed(4096)]),
            ..TensorSpec::new("x", Datatype::Int64, vec![Dim::Any, Dim::Any])
        }],
        outputs: vec![TensorSpec::new(
            "y",
            Datatype::Fp32,
            vec![Dim::Any, Dim::Fixed(2)],
        )],
    }
}

/// A model whose measurements end at once.
struct Measured {
    program: Program,
    learned: LearnedShapes,
    counts: ShapeCounts,
    now: Time,
    shapes: InputShapes,
}

impl Measured {
    fn new() -> Self {
        let program = program();
        Self {
            shapes: InputShapes::tried(&program),
            program,
            learned: LearnedShapes::default(),
            counts: ShapeCounts::default(),
            now: Time::ZERO,
        }
    }

    fn with(program: Program) -> Self {
        Self {
            program,
            ..Self::new()
        }
    }

    /// Lets a period with a batch of each of these sizes pass. Returns the shapes that the model is measured with, if it is.
    fn pass(&mut self, sizes: &[u64]) -> Option<String> {
        self.now += PERIOD;
        for size in sizes {
            self.counts.add_batch(1, &[*size]);
        }
        let model = self.program.model.clone();
        let measured = [&self.shapes].into_iter();
        let learned = &mut self.learned;
        if !learned.sample(self.now, &model, &self.program, &self.counts, measured) {
            return None;
        }
        self.shapes = self.learned.get(&model).unwrap().clone();
        Some(self.shapes.to_string())
    }
}

#[test]
fn requests_of_another_size_than_the_assumed_one_are_measured_once() {
    let mut model = Measured::new();
    assert_eq!(model.pass(&[128; 60]), None, "it is too few");
    assert_eq!(model.pass(&[128; 60]), Some("-1x128".to_owned()));
    for _ in 0..1000 {
        assert_eq!(model.pass(&[110, 128, 150]), None, "they are near enough");
    }
    assert!(model.pass(&[]).is_none());
}

#[test]
fn requests_agree_with_the_shapes_that_they_are_measured_with() {
    let mut model = Measured::new();
    let id = model.program.model.clone();
    let agrees = |model: &Measured, shapes: &str| {
        let shapes = shapes.parse().unwrap();
        model.learned.agrees(&id, &model.program, &shapes)
    };
    model.pass(&[128; 60]);
    assert!(!agrees(&model, "-1x128"), "it is too few");
    model.pass(&[128; 60]);
    assert!(agrees(&model, "-1x128") && agrees(&model, "-1x110"));
    assert!(!agrees(&model, "-1x16") && !agrees(&model, "-1x128 -1x128"));
}

#[test]
fn few_requests_in_each_period_are_learned_from_in_time() {
    let mut model = Measured::new();
    let needed = (1..100).find(|_| model.pass(&[3000; 2]).is_some());
    assert_eq!(needed, Some(50));
    assert_eq!(model.shapes.to_string(), "-1x3000");
}

#[test]
fn sizes_that_come_and_go_are_measured_more_and_more_seldom() {
    let mut model = Measured::new();
    let mut measured = Vec::new();
    for period in 0..20_000 {
        let size = if period / 100 % 2 == 0 { 64 } else { 512 };
        if model.pass(&[size; 2000]).is_some() {
            measured.push(model.now);
        }
    }
    let between = |pair: &[Time]| pair[1].saturating_since(pair[0]);
    let between: Vec<Duration> = measured.windows(2).map(between).collect();
    assert!(
        between.is_sorted_by(|a, b| a.as_secs() / 600 <= b.as_secs() / 600),
        "{between:?}"
    );
    assert!(between[0] >= FIRST_INTERVAL);
    assert!(between.last().unwrap() >= &MAX_INTERVAL, "{between:?}");
}

#[test]
fn a_mean_that_never_comes_stands_for_two_sizes_unless_the_program_refuses_it() {
    let mut model = Measured::new();
    let both = [[16; 50], [512; 50]].concat();
    model.pass(&both);
    assert_eq!(model.pass(&both), Some("-1x264".to_owned()));

    let mut model = Measured::new();
    model.pass(&both);
    assert_eq!(model.pass(&both), Some("-1x264".to_owned()));
    model.learned.refused(&"m".parse().unwrap());
    model.shapes = InputShapes::tried(&model.program);
    assert_eq!(model.learned.get(&"m".parse().unwrap()), None);
    // The mean is as before, and a size that came takes its place.
    let next = (0..1000).find_map(|_| model.pass(&both));
    assert_eq!(next, Some("-1x512".to_owned()));
}

#[test]
fn shapes_that_the_registration_says_stay() {
    let mut said = program();
    said.inputs[0].typical_shape = Some(TypicalShapes::one(vec![Dim::Any, Dim::Fixed(16)]));
    let mut model = Measured::with(said);
    for _ in 0..10 {
        assert_eq!(model.pass(&[512; 200]), None);
    }
    let mut fixed = program();
    fixed.inputs[0].shape[1] = Dim::Fixed(512);
    let mut model = Measured::with(fixed);
    assert_eq!(model.pass(&[512; 200]), None);
}

#[test]
fn after_a_restart_a_model_has_the_shapes_of_its_profile() {
    let program = program();
    let id = &program.model;
    let restored = |shapes: &str| {
        let mut learned = LearnedShapes::default();
        let shapes: InputShapes = shapes.parse().unwrap();
        learned.restore(id, &program, [&shapes].into_iter());
        learned.get(id).map(ToString::to_string)
    };
    assert_eq!(restored("-1x128"), Some("-1x128".to_owned()));
    assert_eq!(restored("-1x16"), None, "it is the assumed one");
    assert_eq!(restored("-1x128 -1"), None, "it is of another program");
    assert_eq!(restored("-1x9999"), None, "it is above the limit");
}

proptest! {
    #[test]
    fn a_model_is_measured_at_most_once_for_sizes_that_stay(
        sizes in proptest::collection::vec(1_u64..4096, 1..40),
        periods in 2_usize..200,
    ) {
        let mut model = Measured::new();
        let measured = (0..periods).filter_map(|_| model.pass(&sizes)).count();
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        let rows = sizes.len() * periods;
        let differs = deviates(&[16], &[mean], DEVIATION);
        prop_assert!(measured <= 1, "{measured}");
        if differs && rows >= 100 {
            prop_assert_eq!(measured, 1);
            let chosen = model.shapes.sizes(&model.program).unwrap();
            prop_assert!(!deviates(&chosen, &[mean], DEVIATION));
        }
    }
}
