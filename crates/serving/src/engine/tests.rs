use packhorse_contention::ServiceTimes;

use super::*;
use crate::{DeviceKey, ReplicaSpec, ShapeClass};

mod properties;
mod scenarios;

const MODEL: ModelKey = ModelKey(0);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Time {
    Time::ZERO + ms(millis)
}

fn spec(model: ModelKey, times_ms: &[u64], credits: u32) -> ReplicaSpec {
    let service = ServiceTimes::from_times(times_ms.iter().map(|&time| ms(time)).collect());
    ReplicaSpec {
        model,
        batch_size: service.largest(),
        credits,
        service,
        device: DeviceKey(0),
    }
}
