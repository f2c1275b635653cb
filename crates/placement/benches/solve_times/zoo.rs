//! Clusters of any size with models of the Clockwork zoo.

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{
    ByteCount, DemandedModel, Device, MinReplicas, Priority, Problem, ProfileTable,
    RequestsPerSecond,
};

const CLOCKWORK: &str = include_str!("../../../../profiles/sources/clockwork-appendix-a.csv");
const KIND: &str = "V100-SXM2-16GB";

/// The batch sizes of the zoo.
const BATCHES: [u32; 5] = [1, 2, 4, 8, 16];

/// The seed of the random numbers.
const SEED: u64 = 20_26;

/// Returns a problem with models drawn from the zoo, each with a random part of the devices' time and an SLO of 2 to 6 times the latency of
/// its largest batch. The zoo has latencies and weights; memory is the weights and 30 MiB per row. Occupancies, which it does not
/// have, are drawn from the range of the thesis' table A.1 and grow with the batch. In full batches, the rates take the fraction `load`
/// of the devices' time.
pub(crate) fn zoo(devices: usize, models: usize, load: f64) -> Problem {
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
                load * devices as f64 * weight / total * throughput,
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

pub(crate) fn device() -> Device {
    Device {
        kind: KIND.parse().expect("a name"),
        memory: ByteCount::from_mib(16_384).expect("small enough"),
        multiprocessors: Some(80),
        node: "node".parse().expect("a name"),
        cost_per_hour: None,
        pool: None,
    }
}

pub(crate) fn demand(name: &str, rate: f64, slo_ms: u64) -> DemandedModel {
    DemandedModel {
        id: name.parse().expect("a name"),
        rate: RequestsPerSecond::new(rate).expect("a rate"),
        need: None,
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
        slo: Duration::from_millis(slo_ms),
        max_batch_size: 128,
        payload: ByteCount::new(602_112),
        load_time: Duration::ZERO,
        latency_scale: 1.0,
        weights: None,
    }
}

/// A generator of pseudorandom numbers: the same for the same seed on every machine.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
struct SplitMix(u64);

impl SplitMix {
    /// Returns a number from 0 up to 1.
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
