use std::time::Duration;

use packhorse_contention::ServiceTimes;

use super::*;
use crate::{
    BatchError, DeadlineOptions, DeviceKey, DeviceSharing, PoolMember, ReplicaParameters,
    ShapeClass, TenantKey,
};

mod cold;
mod fairness;
mod neighbours;
mod parts;
mod pools;
mod priorities;
mod properties;
mod scenarios;
mod turns;
mod variants;

const MODEL: ModelKey = ModelKey(0);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Time {
    Time::ZERO + ms(millis)
}

fn parameters(model: ModelKey, times_ms: &[u64], in_flight: u32) -> ReplicaParameters {
    let service = ServiceTimes::from_times(times_ms.iter().map(|&time| ms(time)).collect());
    ReplicaParameters {
        model,
        batch_size: service.max_rows(),
        in_flight,
        service,
        device: DeviceKey(0),
        sharing: DeviceSharing::Concurrent,
        shares_memory: false,
    }
}

/// Returns the event that registers a model of the usual priority.
fn registered(model: ModelKey, limits: ModelLimits) -> Event {
    Event::ModelUpdated {
        model,
        limits,
        priority: Priority::default(),
    }
}

/// Returns a request of one row, which shares batches with all others of its model.
fn request(number: u64, model: ModelKey, deadline: Time) -> Request {
    Request {
        id: RequestKey(number),
        model,
        tenant: TenantKey(0),
        rows: 1,
        bytes: 1,
        class: ShapeClass(0),
        priority: 0,
        may_fall_back: false,
        deadline,
        load_by: deadline,
    }
}
