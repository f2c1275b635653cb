//! The choice among the variants of a family.

use super::*;

const LARGE: ModelKey = ModelKey(0);
const SMALL: ModelKey = ModelKey(1);

/// Returns an engine with a replica of each variant, which computes a row in 50 ms and in 10 ms.
fn engine() -> Engine {
    let mut engine = Engine::new(EngineConfig::default());
    let limits = ModelLimits {
        max_batch_rows: 1,
        max_batch_bytes: 1000,
        queue_limit: 20,
    };
    for (replica, model, time) in [(0, LARGE, 50), (1, SMALL, 10)] {
        engine.handle(at(0), Event::ModelUpdated { model, limits });
        engine.handle(
            at(0),
            Event::ReplicaReady {
                replica: ReplicaKey(replica),
                parameters: parameters(model, &[time], 1),
            },
        );
    }
    engine
}

fn request(id: u64, model: ModelKey, deadline: u64) -> Request {
    Request {
        id: RequestKey(id),
        model,
        tenant: TenantKey(0),
        rows: 1,
        bytes: 1,
        class: ShapeClass(0),
        priority: 0,
        deadline: at(deadline),
    }
}

#[test]
fn a_request_goes_to_the_most_accurate_variant_that_can_be_in_time() {
    let mut engine = engine();
    let chosen = |engine: &Engine, deadline| {
        engine.variant_for(at(0), &request(99, LARGE, deadline), &[LARGE, SMALL])
    };
    assert_eq!(chosen(&engine, 60), Some(LARGE));
    assert_eq!(chosen(&engine, 30), Some(SMALL));
    // Neither can: the last one refuses it.
    assert_eq!(chosen(&engine, 5), Some(SMALL));
    // The large one has work for 100 ms.
    for id in 0..2 {
        engine.handle(at(0), Event::RequestArrived(request(id, LARGE, 1_000)));
        while engine.poll(at(0)).is_some() {}
    }
    assert_eq!(chosen(&engine, 120), Some(SMALL));
    assert_eq!(chosen(&engine, 200), Some(LARGE));
}

#[test]
fn variants_without_a_replica_get_no_request() {
    let mut engine = engine();
    let replica = ReplicaKey(0);
    engine.handle(at(0), Event::ReplicaLost { replica });
    let chosen =
        |variants: &[ModelKey]| engine.variant_for(at(0), &request(99, LARGE, 1_000), variants);
    assert_eq!(chosen(&[LARGE, SMALL]), Some(SMALL));
    assert_eq!(chosen(&[LARGE, ModelKey(7)]), None);
}
