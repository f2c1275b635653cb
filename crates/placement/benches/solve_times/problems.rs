//! What is solved: the thesis' settings, and clusters of any size with models of the Clockwork zoo.

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{
    ByteCount, DemandedModel, Device, ModelIndex, Problem, ProfileTable, RequestsPerSecond,
};
use packhorse_placement::IgniterCoefficients;

const TABLE_A1: &str = include_str!("../../../../profiles/v100-thesis.csv");
const CLOCKWORK: &str = include_str!("../../../../profiles/sources/clockwork-appendix-a.csv");
const IGNITER: &str = include_str!("../../../../profiles/v100-igniter.csv");
const COEFFICIENTS: &str = include_str!("../../../../scenarios/igniter/coefficients.csv");
const KIND: &str = "V100-SXM2-16GB";

/// The zoo's batch sizes.
const BATCHES: [u32; 5] = [1, 2, 4, 8, 16];

/// How much of the devices' time the rates of the large clusters want, in full batches.
const LOAD: f64 = 0.9;

/// Of the generator below.
const SEED: u64 = 20_26;

/// A problem with a name.
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) problem: Problem,
    pub(crate) coefficients: Option<IgniterCoefficients>,
}

/// The largest settings of each figure of the thesis, and the example of iGniter's README.
pub(crate) fn thesis() -> Vec<Setting> {
    let vision = [
        "alexnet",
        "densenet121",
        "efficientnet_b7",
        "resnet50",
        "vgg19",
    ];
    let mix = ["bert", "gpt2", "mobilenet_v2", "resnet50"];
    let table = || ProfileTable::from_csv(TABLE_A1).expect("a profile of ours");
    let setting = |name: &str, devices, models: &[&str], rate, slo| Setting {
        name: name.to_owned(),
        problem: Problem {
            devices: vec![device(); devices],
            models: models.iter().map(|name| demand(name, rate, slo)).collect(),
            profiles: table(),
            ..Problem::default()
        },
        coefficients: None,
    };
    let igniter = [
        ("alexnet", 500.0, 15),
        ("resnet50", 400.0, 40),
        ("vgg19", 200.0, 60),
    ];
    let readme = Problem {
        devices: vec![device(); 1],
        models: igniter
            .iter()
            .map(|&(name, rate, slo)| demand(name, rate, slo))
            .collect(),
        profiles: ProfileTable::from_csv(IGNITER).expect("a profile of ours"),
        ..Problem::default()
    };
    vec![
        setting(
            "fig-5.5",
            4,
            &["alexnet", "gpt2", "resnet50", "t5"],
            400.0,
            200,
        ),
        setting(
            "fig-5.6",
            4,
            &["resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert"],
            400.0,
            300,
        ),
        setting(
            "fig-5.7",
            4,
            &["alexnet", "resnet50", "mobilenet_v2", "bert"],
            500.0,
            200,
        ),
        setting("fig-6.1-gpus-6", 6, &vision, 500.0, 200),
        setting("fig-6.10-gpus-8", 8, &mix, 300.0, 300),
        setting("fig-6.15-slo-250-load-5000", 4, &vision, 1000.0, 250),
        Setting {
            name: "igniter-readme".to_owned(),
            problem: readme,
            coefficients: Some(
                IgniterCoefficients::from_csv(COEFFICIENTS).expect("a file of ours"),
            ),
        },
    ]
}

/// From 4 to 6,000 devices and 20 to 2,000 models; 24 and 20 is the size that the Usher paper gives a time for.
pub(crate) fn scale() -> Vec<Setting> {
    let sizes = [
        (4, 20),
        (24, 20),
        (100, 100),
        (600, 200),
        (2_000, 600),
        (6_000, 2_000),
    ];
    let setting = |(devices, models)| Setting {
        name: format!("{devices}-devices-{models}-models"),
        problem: zoo(devices, models),
        coefficients: None,
    };
    sizes.into_iter().map(setting).collect()
}

/// Models drawn from the zoo, each with a weight for its part of the devices' time and an SLO of 2 to 6 times what its largest batch
/// takes. The zoo has latencies and weights; memory is the weights and 30 MiB per row, and occupancies, which it does not
/// have, are drawn from the range of the thesis' table A.1 and grow with the batch.
fn zoo(devices: usize, models: usize) -> Problem {
    let mut random = SplitMix(SEED);
    let zoo: Vec<Vec<&str>> = CLOCKWORK
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect())
        .collect();
    let number = |cell: &str| cell.parse::<f64>().expect("a table of ours");
    let mut rows = format!("{}\n", ProfileTable::CSV_HEADER);
    let mut drawn = Vec::new();
    for index in 0..models {
        let entry = &zoo[(random.unit() * zoo.len() as f64) as usize];
        let (achieved, mean, sm) = (
            random.within(50.0, 80.0),
            random.within(10.0, 30.0),
            random.within(10.0, 60.0),
        );
        for (step, (batch, latency)) in BATCHES.iter().zip(&entry[5..]).enumerate() {
            let memory = number(entry[3]) + 30.0 * f64::from(*batch);
            let grown = 1.0 + 0.1 * step as f64;
            let (achieved, mean, sm) = (
                (achieved * grown).min(98.0),
                mean * grown,
                (sm * grown).min(99.0),
            );
            writeln!(
                rows,
                "model-{index},{KIND},{batch},,{latency},,{memory},{achieved},{mean},{sm}"
            )
            .expect("writing to memory cannot fail");
        }
        let longest = number(entry[9]);
        drawn.push((
            random.within(0.1, 1.9),
            longest * random.within(2.0, 6.0),
            16e3 / longest,
        ));
    }
    let total: f64 = drawn.iter().map(|(weight, ..)| weight).sum();
    let demanded = drawn
        .iter()
        .enumerate()
        .map(|(index, &(weight, slo, throughput))| DemandedModel {
            slo: Duration::from_secs_f64(slo / 1e3),
            ..demand(
                &format!("model-{index}"),
                LOAD * devices as f64 * weight / total * throughput,
                1,
            )
        });
    Problem {
        devices: vec![device(); devices],
        models: demanded.collect(),
        profiles: ProfileTable::from_csv(&rows).expect("written to be read"),
        ..Problem::default()
    }
}

/// The most goodput of any plan in which the devices only take turns, always with the batches that give most: no waiting, no
/// memory, no room that one leaves to another. The models that ask least of a device first.
pub(crate) fn fluid_bound(problem: &Problem) -> f64 {
    let best = |index| {
        let (model, profile) = (
            &problem.models[index],
            problem.profile(ModelIndex(index), packhorse_cluster::DeviceIndex(0))?,
        );
        let in_time = profile
            .whole()
            .iter()
            .filter(|row| row.latency <= model.slo);
        let throughputs = in_time.map(|row| f64::from(row.batch_size) / row.latency.as_secs_f64());
        Some((throughputs.fold(0.0, f64::max), model.rate.get()))
    };
    let mut models: Vec<(f64, f64)> = (0..problem.models.len()).filter_map(best).collect();
    models.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut devices, mut goodput) = (problem.devices.len() as f64, 0.0);
    for (throughput, rate) in models
        .into_iter()
        .filter(|(throughput, _)| *throughput > 0.0)
    {
        let carried = rate.min(devices * throughput);
        devices -= carried / throughput;
        goodput += carried;
    }
    goodput
}

fn device() -> Device {
    Device {
        kind: KIND.parse().expect("a name"),
        memory: ByteCount::from_mib(16_384).expect("small enough"),
        multiprocessors: Some(80),
        node: "node".parse().expect("a name"),
        cost_per_hour: None,
    }
}

fn demand(name: &str, rate: f64, slo_ms: u64) -> DemandedModel {
    DemandedModel {
        id: name.parse().expect("a name"),
        rate: RequestsPerSecond::new(rate).expect("a rate"),
        slo: Duration::from_millis(slo_ms),
        max_batch_size: 128,
        payload: ByteCount::new(602_112),
        load_time: Duration::ZERO,
        latency_scale: 1.0,
    }
}

/// A generator of numbers as good as random, the same for the same seed everywhere.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
struct SplitMix(u64);

impl SplitMix {
    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn within(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }
}
