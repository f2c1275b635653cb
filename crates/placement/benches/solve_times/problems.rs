//! The problems: the thesis' settings, and clusters of any size with models of the Clockwork zoo.

use packhorse_cluster::{ModelIndex, Problem, ProfileTable};
use packhorse_placement::IgniterCoefficients;

use crate::zoo::{demand, device, zoo};

const TABLE_A1: &str = include_str!("../../../../profiles/v100-thesis.csv");
const IGNITER: &str = include_str!("../../../../profiles/v100-igniter.csv");
const COEFFICIENTS: &str = include_str!("../../../../scenarios/igniter/coefficients.csv");

/// The load of the large clusters in full batches, relative to the devices' time.
const LOAD: f64 = 0.9;

/// A problem with a name.
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) problem: Problem,
    pub(crate) coefficients: Option<IgniterCoefficients>,
}

/// Returns the largest settings of each figure of the thesis, and the example of iGniter's README.
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

/// Returns settings from 4 to 6,000 devices and 20 to 2,000 models; the Usher paper gives a time for 24 and 20.
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
        problem: zoo(devices, models, LOAD),
        coefficients: None,
    };
    sizes.into_iter().map(setting).collect()
}

/// Returns the largest goodput of any plan with time-shared devices, always with the batches of the largest throughput, without waiting or
/// limits of memory, and without fragmentation. Models with the least device time per request come first.
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
