//! Variants: a model, and a cheaper one that answers in its place.

use super::*;

const ACCURATE: ModelKey = ModelKey(0);
const CHEAP: ModelKey = ModelKey(1);

/// An engine with two variants that each have a replica with one credit: the accurate one takes 40 ms for a row, the cheap one 5 ms.
struct Variants {
    engine: Engine,
    requests: u64,
}

impl Variants {
    fn new() -> Self {
        let mut engine = Engine::new(EngineConfig::default());
        let limits = ModelLimits {
            max_batch_rows: 1,
            max_batch_bytes: 1000,
            queue_limit: 3,
        };
        for (model, time) in [(ACCURATE, 40), (CHEAP, 5)] {
            engine.handle(at(0), registered(model, limits));
            let ready = Event::ReplicaReady {
                replica: ReplicaKey(model.0),
                parameters: parameters(model, &[time], 1),
            };
            engine.handle(at(0), ready);
        }
        let mut variants = Self {
            engine,
            requests: 0,
        };
        variants.set_fallback(ACCURATE, Some(CHEAP));
        variants
    }

    fn set_fallback(&mut self, model: ModelKey, fallback: Option<ModelKey>) {
        let changed = Event::FallbackChanged { model, fallback };
        self.engine.handle(at(0), changed);
    }

    /// Sends a request for the family, and returns what the engine does.
    fn arrive(&mut self, now: u64, deadline: u64) -> Vec<Action> {
        self.arrive_for(now, deadline, true)
    }

    /// Sends a request for the family or for the accurate variant alone, and returns what the engine does.
    fn arrive_for(&mut self, now: u64, deadline: u64, may_fall_back: bool) -> Vec<Action> {
        let id = RequestKey(self.requests);
        self.requests += 1;
        let request = Request {
            id,
            model: ACCURATE,
            tenant: TenantKey(0),
            rows: 1,
            bytes: 1,
            class: ShapeClass(0),
            priority: 0,
            may_fall_back,
            deadline: at(deadline),
            load_by: at(deadline),
        };
        self.engine.handle(at(now), Event::RequestArrived(request));
        self.drain(now)
    }

    fn drain(&mut self, now: u64) -> Vec<Action> {
        std::iter::from_fn(|| self.engine.poll(at(now))).collect()
    }
}

/// Returns the batch of one request on the replica of a model.
fn sent(batch: u64, model: ModelKey, request: u64) -> Action {
    Action::Dispatch {
        batch: BatchKey(batch),
        replica: ReplicaKey(model.0),
        requests: vec![RequestKey(request)],
    }
}

#[test]
fn the_accurate_variant_answers_while_it_can_be_in_time_and_the_cheap_one_else() {
    let mut variants = Variants::new();
    assert_eq!(variants.arrive(0, 50), [sent(0, ACCURATE, 0)]);
    // The replica is busy until 40 ms, so that the next request would end at 80 ms.
    assert_eq!(variants.arrive(1, 51), [sent(1, CHEAP, 1)]);
    assert!(
        variants.arrive(2, 102).is_empty(),
        "this one can wait for it"
    );
    assert_eq!(variants.engine.queued(ACCURATE), 1);
}

#[test]
fn a_request_that_waited_in_vain_goes_to_the_cheap_variant() {
    let mut variants = Variants::new();
    variants.arrive(0, 100);
    assert!(variants.arrive(1, 100).is_empty(), "it waits until 40 ms");
    // The replica took longer than estimated: it would answer the request at 110 ms.
    variants.engine.handle(
        at(70),
        Event::BatchCompleted {
            batch: BatchKey(0),
            queue_wait: Duration::ZERO,
            compute: ms(70),
        },
    );
    assert_eq!(variants.drain(70), [sent(1, CHEAP, 1)]);
    let books = variants.engine.books();
    assert_eq!((books.accepted, books.in_flight, books.expired), (2, 1, 0));
}

#[test]
fn a_request_is_refused_once_no_variant_can_be_in_time() {
    let mut variants = Variants::new();
    variants.arrive(0, 50);
    variants.arrive(0, 50);
    let refused = Action::Finish {
        request: RequestKey(2),
        outcome: RequestOutcome::Refused(crate::Refusal::CannotMeetDeadline),
    };
    assert_eq!(variants.arrive(0, 8), [refused]);
    assert_eq!(variants.engine.books().accepted, 2);
}

#[test]
fn without_its_fallback_a_variant_refuses_as_any_model() {
    let mut variants = Variants::new();
    variants.set_fallback(ACCURATE, None);
    variants.arrive(0, 50);
    assert!(matches!(
        variants.arrive(1, 51)[..],
        [Action::Finish { .. }]
    ));
}

#[test]
fn a_request_for_one_variant_alone_is_answered_by_no_other() {
    let mut variants = Variants::new();
    assert_eq!(variants.arrive_for(0, 50, false), [sent(0, ACCURATE, 0)]);
    let refused = variants.arrive_for(1, 51, false);
    assert!(matches!(refused[..], [Action::Finish { .. }]));
    assert!(variants.arrive_for(1, 100, false).is_empty(), "it waits");
    // The replica took longer than estimated, so that the request has waited in vain.
    variants.engine.handle(
        at(70),
        Event::BatchCompleted {
            batch: BatchKey(0),
            queue_wait: Duration::ZERO,
            compute: Duration::from_millis(70),
        },
    );
    let expired = variants.drain(70);
    assert!(
        matches!(expired[..], [Action::Finish { .. }]),
        "{expired:?}"
    );
}

#[test]
fn what_waits_for_a_variant_that_is_removed_goes_to_the_next_one() {
    let mut variants = Variants::new();
    variants.arrive(0, 100);
    assert!(variants.arrive(1, 100).is_empty(), "it waits");
    assert!(variants.arrive_for(1, 200, false).is_empty(), "it, too");
    let removed = Event::ModelRemoved { model: ACCURATE };
    variants.engine.handle(at(2), removed);
    let lost = Action::Finish {
        request: RequestKey(2),
        outcome: RequestOutcome::Lost,
    };
    assert_eq!(variants.drain(2), [lost, sent(1, CHEAP, 1)]);
}

#[test]
fn fallbacks_that_lead_back_end_in_a_refusal() {
    let mut variants = Variants::new();
    variants.set_fallback(CHEAP, Some(ACCURATE));
    assert!(matches!(variants.arrive(0, 1)[..], [Action::Finish { .. }]));
}
