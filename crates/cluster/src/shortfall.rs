//! The reasons why a plan does not serve a model, or not all of its requests.

use std::time::Duration;

use crate::{ByteCount, DeviceKind, Priority, RequestsPerSecond};

/// The reason why a plan does not serve a model, or not all of its requests. `Display` gives the sentence that operators read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Shortfall {
    /// The problem has no device.
    #[error("there is no device")]
    NoDevices,
    /// The model has no profile on any kind of the devices.
    #[error("no profile on {}", joined(kinds))]
    NoProfile {
        /// The kinds of the devices.
        kinds: Vec<DeviceKind>,
    },
    /// Every batch takes longer than the SLO, alone on a whole device.
    #[error(
        "no batch size meets the SLO of {}: a batch of {batch_size} takes {} on {kind}",
        millis(slo),
        millis(latency)
    )]
    BatchOverSlo {
        /// The model's SLO.
        slo: Duration,
        /// The size of the fastest batch.
        batch_size: u32,
        /// The time of the fastest batch.
        latency: Duration,
        /// The kind of device with the fastest batch.
        kind: DeviceKind,
    },
    /// The profiles lack a measurement that the policy requires.
    #[error("its profiles have no {column}")]
    MissingColumn {
        /// The column of the profile table.
        column: &'static str,
    },
    /// The profiles lack the memory of the batches.
    #[error("its profiles do not say how much memory it needs")]
    UnknownMemory,
    /// Every batch size within the SLO lacks a measurement or exceeds the memory of the devices.
    #[error(
        "no batch size within its SLO has both {column} and memory_mib, and the memory on any device"
    )]
    NoUsableBatch {
        /// The column of the profile table that the policy requires beside the memory.
        column: &'static str,
    },
    /// The policy has no coefficients of the model.
    #[error("there are no iGniter coefficients for it")]
    NoCoefficients,
    /// Every batch within the SLO exceeds the memory of the devices that the policy has coefficients for.
    #[error("no device of a kind with coefficients has the memory for a batch within its SLO")]
    NoMemoryWithCoefficients,
    /// Every batch takes half of the SLO or longer, and the other half is for waiting.
    #[error("no batch size takes less than half of the SLO of {}", millis(slo))]
    BatchOverHalfSlo {
        /// The model's SLO.
        slo: Duration,
    },
    /// Every batch takes half of the SLO or longer, even on a whole device.
    #[error("no batch takes less than half of its SLO, even on a whole device")]
    WholeDeviceOverHalfSlo,
    /// Every batch takes half of the SLO or longer, or exceeds the memory of the devices.
    #[error(
        "no batch that a device has the memory for takes less than half of the SLO of {}",
        millis(slo)
    )]
    NoBatchWithinHalfSlo {
        /// The model's SLO.
        slo: Duration,
    },
    /// Every batch that takes at most half of the SLO exceeds the memory of the devices.
    #[error(
        "no device has the memory for a batch that leaves a request the time to wait for another one"
    )]
    NoMemoryWithinHalfSlo,
    /// A request takes longer than the SLO with the time on the network.
    #[error(
        "with the way there and back a request takes {:.3} ms, over the SLO of {}",
        latency * 1e3,
        millis(slo)
    )]
    RequestOverSlo {
        /// The least latency of a request, in seconds.
        latency: f64,
        /// The model's SLO.
        slo: Duration,
    },
    /// The model needs more replicas than there are devices.
    #[error("it needs {replicas} replicas or a multiple, and there are {devices} devices")]
    TooManyReplicas {
        /// The replicas that carry the rate: a whole number, as large as a rate requires.
        replicas: f64,
        /// The devices of the problem.
        devices: usize,
    },
    /// Other models have all devices.
    #[error("no device is left")]
    NoDeviceLeft,
    /// Other models have all devices with enough memory.
    #[error("no device with enough memory is left")]
    NoDeviceWithMemoryLeft,
    /// Every device has less memory left than the model needs.
    #[error("it needs {needed} of memory, and no suitable device has more than {left} left")]
    NoMemoryLeft {
        /// The memory of the smallest batch.
        needed: ByteCount,
        /// The most memory that is left on a device where the model can run.
        left: ByteCount,
    },
    /// Every device has less memory or compute left than a replica takes.
    #[error("no device has room left for it")]
    NoRoomLeft,
    /// Every partition that is left computes the batches too slowly.
    #[error("no partition is left that serves it in time")]
    NoPartitionLeft,
    /// Every compute share that is left computes the batches too slowly.
    #[error("no share is left that computes a batch in time")]
    NoComputeShareLeft,
    /// The devices serve more requests of other models instead.
    #[error("the devices give more without it")]
    OthersGainMore,
    /// Every replica of the model lacks memory or time, or costs other models more than it gains.
    #[error("no device has the memory or the time for it, or others would lose more")]
    NoReplicaPays,
    /// The replicas carry less than the rate in full batches.
    #[error("{carried} {goodput:.1} of {rate_text} requests/s", rate_text = short(*.rate), carried = carry(*.replicas))]
    Throughput {
        /// The model's replicas.
        replicas: usize,
        /// The requests per second that they carry.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The replicas carry less than the rate beside their neighbours.
    #[error("its replicas carry {goodput:.1} of {rate_text} requests/s", rate_text = short(*.rate))]
    ThroughputBesideNeighbours {
        /// The requests per second that the replicas carry.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The replicas carry less than the rate, and other models have the other devices.
    #[error("{replicas} replicas carry {goodput:.1} of {rate_text} requests/s, and no device is left for more", rate_text = short(*.rate))]
    NoDeviceLeftForMore {
        /// The model's replicas.
        replicas: usize,
        /// The requests per second that they carry.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The partitions carry less than the rate, and there is no room for another one.
    #[error("{partitions} gpulets carry {goodput:.1} of {rate_text} requests/s, and there is no room for more", rate_text = short(*.rate))]
    NoPartitionLeftForMore {
        /// The model's partitions.
        partitions: usize,
        /// The requests per second that they carry.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The compute shares carry less than the rate.
    #[error("its shares carry {goodput:.1} of {rate_text} requests/s", rate_text = short(*.rate))]
    ShareThroughput {
        /// The requests per second that the shares carry.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The devices have less time than the rate requires.
    #[error("the devices have time for {goodput:.1} of {rate_text} requests/s", rate_text = short(*.rate))]
    DeviceTime {
        /// The requests per second that the devices have time for.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The batches of the replicas are short enough for the SLO alone, and too long beside their neighbours.
    #[error("beside their neighbours, batches of {its_replicas} take too long for its SLO: {goodput:.1} of {rate_text} requests/s are in time", its_replicas = its(*.replicas), rate_text = short(*.rate))]
    BatchTimeBesideNeighbours {
        /// The model's replicas.
        replicas: usize,
        /// The requests per second that they answer in time.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The batches of the replicas take too long for the SLO, however few requests come.
    #[error("batches of {its_replicas} take too long for its SLO", its_replicas = its(*.replicas))]
    BatchTime {
        /// The model's replicas.
        replicas: usize,
    },
    /// The replicas answer fewer requests in time than the rate.
    #[error("{carried} {capacity:.1} requests/s beside their neighbours, and {goodput:.1} of {rate_text} are in time", rate_text = short(*.rate), carried = carry(*.replicas))]
    Goodput {
        /// The model's replicas.
        replicas: usize,
        /// The requests per second that they carry in full batches.
        capacity: f64,
        /// The requests per second that they answer in time.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// The measured needs of the models leave room for a part of the rate.
    #[error("{planned:.1} of {rate_text} requests/s are planned for: more does not fit beside what the models are measured to need", rate_text = short(*.rate))]
    Claims {
        /// The rate that the plan is made for.
        planned: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
    /// Models of a higher priority leave room for a part of the rate.
    #[error("{planned:.1} of {rate_text} requests/s are planned for: models of a higher priority than {priority} come first", rate_text = short(*.rate))]
    HigherPriority {
        /// The rate that the plan is made for.
        planned: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
        /// The model's priority.
        priority: Priority,
    },
    /// The policy gives no reason why the goodput is below the rate.
    #[error("{goodput_text} of {rate_text} requests/s", goodput_text = short(*.goodput), rate_text = short(*.rate))]
    Unexplained {
        /// The requests per second that the plan promises.
        goodput: RequestsPerSecond,
        /// The model's rate.
        rate: RequestsPerSecond,
    },
}

/// Returns a rate as people write it: with one decimal from 1 on and three below, and without zeros at the end, such as 409.1, 70 and 0.013.
fn short(rate: RequestsPerSecond) -> String {
    let rate = rate.get();
    let decimals = if rate >= 1.0 { 1 } else { 3 };
    let text = format!("{rate:.decimals$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

/// Returns a model's replicas, such as "its 2 replicas".
fn its(replicas: usize) -> String {
    match replicas {
        1 => "its replica".to_owned(),
        _ => format!("its {replicas} replicas"),
    }
}

/// Returns the begin of a sentence on what a model's replicas carry.
fn carry(replicas: usize) -> String {
    let verb = if replicas == 1 { "carries" } else { "carry" };
    format!("{} {verb}", its(replicas))
}

/// Returns a time in milliseconds with at most three decimals, such as 29.866 ms.
fn millis(time: &Duration) -> String {
    let text = format!("{:.3}", time.as_secs_f64() * 1e3);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} ms")
}

fn joined(kinds: &[DeviceKind]) -> String {
    let kinds: Vec<&str> = kinds.iter().map(DeviceKind::as_str).collect();
    kinds.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Duration = Duration::from_millis(5);

    fn check(rows: &[(Shortfall, &str)]) {
        for (shortfall, sentence) in rows {
            assert_eq!(shortfall.to_string(), *sentence);
        }
    }

    #[test]
    fn the_sentences_for_models_that_no_device_can_serve() {
        let kind = |name: &str| name.parse::<DeviceKind>().unwrap();
        check(&[
            (Shortfall::NoDevices, "there is no device"),
            (
                Shortfall::NoProfile {
                    kinds: vec![kind("T4"), kind("H200")],
                },
                "no profile on T4, H200",
            ),
            (
                Shortfall::BatchOverSlo {
                    slo: SLO,
                    batch_size: 4,
                    latency: Duration::from_micros(34_089),
                    kind: kind("V100"),
                },
                "no batch size meets the SLO of 5 ms: a batch of 4 takes 34.089 ms on V100",
            ),
            (
                Shortfall::MissingColumn {
                    column: "memory_mib",
                },
                "its profiles have no memory_mib",
            ),
            (
                Shortfall::UnknownMemory,
                "its profiles do not say how much memory it needs",
            ),
            (
                Shortfall::NoUsableBatch {
                    column: "sm_utilization_pct",
                },
                "no batch size within its SLO has both sm_utilization_pct and memory_mib, and the memory on any device",
            ),
            (
                Shortfall::NoCoefficients,
                "there are no iGniter coefficients for it",
            ),
            (
                Shortfall::NoMemoryWithCoefficients,
                "no device of a kind with coefficients has the memory for a batch within its SLO",
            ),
            (
                Shortfall::BatchOverHalfSlo { slo: SLO },
                "no batch size takes less than half of the SLO of 5 ms",
            ),
            (
                Shortfall::WholeDeviceOverHalfSlo,
                "no batch takes less than half of its SLO, even on a whole device",
            ),
            (
                Shortfall::NoBatchWithinHalfSlo { slo: SLO },
                "no batch that a device has the memory for takes less than half of the SLO of 5 ms",
            ),
            (
                Shortfall::NoMemoryWithinHalfSlo,
                "no device has the memory for a batch that leaves a request the time to wait for another one",
            ),
            (
                Shortfall::RequestOverSlo {
                    latency: 0.005_432_1,
                    slo: SLO,
                },
                "with the way there and back a request takes 5.432 ms, over the SLO of 5 ms",
            ),
            (
                Shortfall::TooManyReplicas {
                    replicas: 5.0,
                    devices: 4,
                },
                "it needs 5 replicas or a multiple, and there are 4 devices",
            ),
        ]);
    }

    #[test]
    fn the_sentences_for_models_without_a_replica() {
        check(&[
            (Shortfall::NoDeviceLeft, "no device is left"),
            (
                Shortfall::NoDeviceWithMemoryLeft,
                "no device with enough memory is left",
            ),
            (
                Shortfall::NoMemoryLeft {
                    needed: ByteCount::from_mib(568).unwrap(),
                    left: ByteCount::from_mib(500).unwrap(),
                },
                "it needs 568.0 MiB of memory, and no suitable device has more than 500.0 MiB left",
            ),
            (Shortfall::NoRoomLeft, "no device has room left for it"),
            (
                Shortfall::NoPartitionLeft,
                "no partition is left that serves it in time",
            ),
            (
                Shortfall::NoComputeShareLeft,
                "no share is left that computes a batch in time",
            ),
            (
                Shortfall::OthersGainMore,
                "the devices give more without it",
            ),
            (
                Shortfall::NoReplicaPays,
                "no device has the memory or the time for it, or others would lose more",
            ),
        ]);
    }

    #[test]
    fn the_sentences_for_models_with_too_few_replicas() {
        let rate = |per_second| RequestsPerSecond::new(per_second).unwrap();
        let (goodput, rate) = (rate(60.61), rate(70.0));
        check(&[
            (
                Shortfall::Throughput {
                    replicas: 2,
                    goodput,
                    rate,
                },
                "its 2 replicas carry 60.6 of 70 requests/s",
            ),
            (
                Shortfall::ThroughputBesideNeighbours { goodput, rate },
                "its replicas carry 60.6 of 70 requests/s",
            ),
            (
                Shortfall::NoDeviceLeftForMore {
                    replicas: 2,
                    goodput,
                    rate,
                },
                "2 replicas carry 60.6 of 70 requests/s, and no device is left for more",
            ),
            (
                Shortfall::NoPartitionLeftForMore {
                    partitions: 2,
                    goodput,
                    rate,
                },
                "2 gpulets carry 60.6 of 70 requests/s, and there is no room for more",
            ),
            (
                Shortfall::ShareThroughput { goodput, rate },
                "its shares carry 60.6 of 70 requests/s",
            ),
            (
                Shortfall::DeviceTime { goodput, rate },
                "the devices have time for 60.6 of 70 requests/s",
            ),
            (
                Shortfall::BatchTimeBesideNeighbours {
                    replicas: 1,
                    goodput: RequestsPerSecond::new(5.06).unwrap(),
                    rate: RequestsPerSecond::new(540.0).unwrap(),
                },
                "beside their neighbours, batches of its replica take too long for its SLO: 5.1 of 540 requests/s are in time",
            ),
            (
                Shortfall::BatchTime { replicas: 2 },
                "batches of its 2 replicas take too long for its SLO",
            ),
            (
                Shortfall::BatchTime { replicas: 1 },
                "batches of its replica take too long for its SLO",
            ),
            (
                Shortfall::Throughput {
                    replicas: 1,
                    goodput: RequestsPerSecond::new(0.0).unwrap(),
                    rate: RequestsPerSecond::new(0.013_326).unwrap(),
                },
                "its replica carries 0.0 of 0.013 requests/s",
            ),
            (
                Shortfall::DeviceTime {
                    goodput,
                    rate: RequestsPerSecond::new(409.102_914_887_241_7).unwrap(),
                },
                "the devices have time for 60.6 of 409.1 requests/s",
            ),
            (
                Shortfall::Goodput {
                    replicas: 2,
                    capacity: 65.25,
                    goodput,
                    rate,
                },
                "its 2 replicas carry 65.2 requests/s beside their neighbours, and 60.6 of 70 are in time",
            ),
            (
                Shortfall::Unexplained { goodput, rate },
                "60.6 of 70 requests/s",
            ),
        ]);
    }
}
