//! Compares the metrics with numbers from other sources.

#![expect(clippy::unwrap_used, reason = "a test ends where an unwrap does")]

use std::time::Duration;

use packhorse_cluster::{ByteCount, Time};
use packhorse_kernels::{Gpu, Kernel, KernelProfile, Launch};

fn rows<const N: usize>(text: &str) -> Vec<[String; N]> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows = reader.records().map(|record| {
        let cells: Vec<String> = record.unwrap().iter().map(ToOwned::to_owned).collect();
        cells.try_into().unwrap()
    });
    rows.collect()
}

#[test]
fn resident_blocks_are_those_of_nvidias_occupancy_calculator() {
    let rows = rows(include_str!("data/cuda_occupancy.csv"));
    assert!(rows.len() > 200);
    for row in rows {
        let [capability, threads, registers, shared, blocks] = &row;
        let launch = Launch {
            grid: [1, 1, 1],
            block: [threads.parse().unwrap(), 1, 1],
            registers_per_thread: registers.parse().unwrap(),
            shared_memory: ByteCount::new(shared.parse().unwrap()),
        };
        let gpu = Gpu::new(capability.parse().unwrap(), 80).unwrap();
        let ours = gpu
            .metrics(&launch)
            .map_or(0, |metrics| metrics.resident_blocks);
        assert_eq!(ours.to_string(), *blocks, "{row:?}");
    }
}

#[test]
fn the_mean_of_recorded_operators_is_their_weighted_sum() {
    let v100 = Gpu::new("7.0".parse().unwrap(), 80).unwrap();
    let (mut kernels, mut now) = (Vec::new(), Time::ZERO);
    for [sm_needed, nanos] in rows(include_str!("data/orion_resnet50.csv")) {
        let duration = Duration::from_nanos(nanos.parse().unwrap());
        kernels.push(Kernel {
            name: String::new(),
            // 64 registers for each of 1024 threads: one block fills a multiprocessor.
            launch: Launch {
                grid: [sm_needed.parse().unwrap(), 1, 1],
                block: [1024, 1, 1],
                registers_per_thread: 64,
                shared_memory: ByteCount::ZERO,
            },
            start: now,
            duration,
        });
        now += duration;
    }
    let profile = KernelProfile::new(&v100, &kernels).unwrap();
    assert_eq!(
        profile.sm_utilization.max(),
        packhorse_cluster::Percent::new(100.0).unwrap()
    );
    // Sum of min(100, sm_needed / 80) * duration over the sum of durations, by awk over the file.
    assert!((profile.sm_utilization.mean().get() - 54.748_261_655).abs() < 1e-6);
    assert_eq!(
        profile.sm_utilization.duration(),
        Duration::from_nanos(6_498_424)
    );
}
