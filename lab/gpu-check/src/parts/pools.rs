//! More models than the device has memory for: whether they answer the same when their weights have left and come back, and what that takes.

use std::time::Duration;

use packhorse_api::{ModelState, WeightsView};

use crate::{
    cluster::{Cluster, Demand},
    host::{Backend, Host},
    models::{self, Model},
    part::Part,
    process::now,
    report::{Section, Target, median},
};

pub(crate) struct Pools;

/// The model, of which each copy has 98 MiB of weights.
const MODEL: &str = "resnet50";
/// The memory of the device for weights, batches, and what the process has otherwise: 512 MiB are left free for the context of a GPU.
const MEMORY_MIB: u32 = 1024;
/// The same for the smaller model of `--quick`, of 21 MiB.
const QUICK_MEMORY_MIB: u32 = 640;
const DEMAND: Demand = Demand {
    rate_rps: 1.0,
    slo_ms: 5000.0,
    max_batch_size: Some(4),
};
const SERVES_LIMIT: Duration = Duration::from_mins(2);
/// The target of a request whose weights come first, over one whose weights are there and the copy.
const MOST_OVER_COPY: f64 = 1.2;

/// The times of the requests to the copies.
#[derive(Default)]
struct Times {
    /// Those that found the weights of another model in the place of theirs, in milliseconds.
    moved: Vec<f64>,
    /// Those right behind them.
    resident: Vec<f64>,
    /// True while all copies answer bit by bit what the first did.
    are_equal: bool,
}

impl Part for Pools {
    fn name(&self) -> &'static str {
        "pools"
    }

    fn description(&self) -> &'static str {
        "more models than the device has memory for, whose weights come and go"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let (copies, rounds, memory_mib) = if host.quick {
            (16, 2, QUICK_MEMORY_MIB)
        } else {
            (20, 10, MEMORY_MIB)
        };
        let copies = copies_of(&models::make_model(host, MODEL)?, copies)?;
        let memory =
            { host.devices.iter() }.map(|device| format!("{}={memory_mib}MiB", device.name));
        let memory = memory.collect::<Vec<_>>().join(",");
        let environment = [
            ("PACKHORSE_GPU_POOLS", "true"),
            ("PACKHORSE_DEVICE_MEMORY", memory.as_str()),
        ];
        let profile_time = Duration::from_secs(1);
        let mut cluster = Cluster::start(host, "pools", profile_time, &environment)?;
        let started = now();
        for copy in &copies {
            cluster.register_model(copy, DEMAND)?;
        }
        for copy in &copies {
            cluster.wait_for_model(copy, "ready", SERVES_LIMIT, |view| {
                view.state == ModelState::Ready
            })?;
        }
        let seconds = (now() - started).as_secs_f64();
        section.number("until all models serve", seconds, "s", None);
        let times = ask_in_turn(host, &cluster, &copies, rounds)?;
        report(&cluster, &copies, times, host.backend, section)
    }
}

/// Returns models with the same file and other names.
fn copies_of(model: &Model, count: usize) -> anyhow::Result<Vec<Model>> {
    let copy = |number| Ok(model.renamed(format!("{MODEL}-{number}").parse()?));
    (0..count).map(copy).collect()
}

/// Asks each model twice in a row, and all of them in turn: whoever comes next was not used for the longest time.
fn ask_in_turn(
    host: &Host,
    cluster: &Cluster,
    copies: &[Model],
    rounds: usize,
) -> anyhow::Result<Times> {
    let example = copies[0].example(1)?;
    let expected = cluster.infer(&copies[0], 1, &example.input)?;
    let mut times = Times {
        are_equal: true,
        ..Times::default()
    };
    for _ in 0..rounds {
        for copy in copies {
            for times_of in [&mut times.moved, &mut times.resident] {
                let sent = now();
                let answer = cluster.infer(copy, 1, &example.input)?;
                times_of.push((now() - sent).as_secs_f64() * 1e3);
                let bits = |answer: &[f32]| answer.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                times.are_equal &= bits(&answer) == bits(&expected);
            }
        }
        if host.is_out_of_time() {
            break;
        }
    }
    Ok(times)
}

fn report(
    cluster: &Cluster,
    copies: &[Model],
    times: Times,
    backend: Backend,
    section: &mut Section,
) -> anyhow::Result<()> {
    let mut weights: Vec<WeightsView> = Vec::new();
    for copy in copies {
        let replicas = cluster.model_view(copy)?.replicas;
        weights.extend(replicas.into_iter().filter_map(|replica| replica.weights));
    }
    let share = |part: usize| format!("{part} of {}", copies.len());
    let parkable = weights.iter().filter(|weights| weights.bytes.as_u64() > 0);
    let parkable = parkable.count();
    section.condition(
        "models whose weights can leave",
        "all",
        parkable == copies.len(),
        share(parkable),
    );
    let loads: u64 = weights.iter().map(|weights| weights.loads).sum();
    section.condition(
        "weights that came",
        "more often than there are models",
        loads > copies.len() as u64,
        format!("{loads} times"),
    );
    section.condition(
        "answers of all models, before and after",
        "equal bit by bit",
        times.are_equal,
        if times.are_equal {
            "equal"
        } else {
            "different"
        },
    );
    let load = median(weights.iter().map(|weights| weights.load_ms).collect());
    let (moved, resident) = (median(times.moved), median(times.resident));
    section.number("copy of the weights of a model (median)", load, "ms", None);
    section.number("request, weights there (median)", resident, "ms", None);
    section.number("request, weights away (median)", moved, "ms", None);
    // On a CPU they are mapped, and the first run reads them.
    let target = (backend == Backend::Nvidia).then_some(Target::AtMost(MOST_OVER_COPY));
    section.number(
        "request, weights away, over copy and request",
        moved / (load + resident),
        "",
        target,
    );
    Ok(())
}
