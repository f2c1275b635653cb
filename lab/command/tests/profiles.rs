//! The published profiles that come with the repository, held against numbers worked out by hand from their sources.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read its files fails"
)]

use std::{fs, path::Path, time::Duration};

use packhorse_cluster::{ByteCount, Percent, Profile, ProfileTable};

fn read(file: &str) -> ProfileTable {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../profiles")
        .join(file);
    ProfileTable::from_csv(&fs::read_to_string(path).unwrap()).unwrap()
}

fn profile<'a>(table: &'a ProfileTable, model: &str, kind: &str) -> &'a Profile {
    table
        .get(&model.parse().unwrap(), &kind.parse().unwrap())
        .unwrap()
}

fn micros(latency: Duration) -> u64 {
    (latency.as_secs_f64() * 1e6).round() as u64
}

#[test]
fn the_thesis_has_71_rows_of_13_models_with_known_numbers() {
    let table = read("v100-thesis.csv");
    assert_eq!(table.len(), 13);
    assert_eq!(
        table
            .iter()
            .map(|(_, _, profile)| profile.rows().len())
            .sum::<usize>(),
        71
    );

    let row = |model, batch_size| {
        let profile = profile(&table, model, "V100-SXM2-16GB");
        *profile
            .rows()
            .iter()
            .find(|row| row.batch_size == batch_size)
            .unwrap()
    };
    // 4 / 2801.75 s; 1.66 % of 16384 MiB.
    let alexnet = row("alexnet", 4);
    assert_eq!(
        (micros(alexnet.latency), alexnet.memory),
        (1428, Some(ByteCount::new(285_185_828)))
    );
    assert_eq!(alexnet.achieved_occupancy, Percent::new(69.17).ok());
    assert_eq!(alexnet.mean_occupancy, Percent::new(18.68).ok());
    assert_eq!(alexnet.sm_utilization, Percent::new(47.07).ok());
    // 128 / 405.93 s; 35.43 %.
    let efficientnet = row("efficientnet_b7", 128);
    assert_eq!(
        (micros(efficientnet.latency), efficientnet.memory),
        (315_325, ByteCount::try_from_mib_f64(5804.8512).ok())
    );
    // What the source has lost is unknown, not zero.
    let resnext = row("resnext50_32x4d", 8);
    assert_eq!(
        (
            micros(resnext.latency),
            resnext.memory,
            resnext.mean_occupancy
        ),
        (14_809, None, None)
    );
    assert_eq!(row("inception_v3", 128).achieved_occupancy, None);
}

#[test]
fn the_clockwork_zoo_has_64_models_at_5_batch_sizes() {
    let table = read("v100-clockwork.csv");
    assert_eq!(table.len(), 64);
    assert!(
        table
            .iter()
            .all(|(_, _, profile)| profile.rows().len() == 5)
    );
    let densenet = profile(&table, "densenet121", "V100");
    assert_eq!(micros(densenet.latency(1)), 3800);
    assert_eq!(micros(densenet.latency(16)), 17_910);
    assert_eq!(densenet.memory(16), None);
}
