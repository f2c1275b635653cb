//! One scenario per test, at hand-made times.

use super::*;

/// An engine with one model, whose actions are shown in one line each.
struct Scenario {
    engine: Engine,
    requests: u64,
}

impl Scenario {
    /// Creates one model of at most 8 rows, and replicas 0, 1, … that take so many milliseconds for 1, 2, … rows, with two
    /// credits each. Partial batches are not held: a free credit takes work at once, so that few steps make requests wait.
    fn new(replicas: &[&[u64]]) -> Self {
        Self::with_options(|options| options.holding = false, replicas)
    }

    /// Creates a scenario in which partial batches are held.
    fn holding(replicas: &[&[u64]]) -> Self {
        Self::with(EngineConfig::default(), replicas)
    }

    fn with_options(change: fn(&mut DeadlineOptions), replicas: &[&[u64]]) -> Self {
        let mut config = EngineConfig::default();
        change(&mut config.deadline);
        Self::with(config, replicas)
    }

    /// Creates a scenario with `fixed-wait`, which holds an open batch for 100 ms.
    fn fixed_wait(replicas: &[&[u64]]) -> Self {
        let config = EngineConfig {
            discipline: DisciplineName::FixedWait,
            max_batch_wait: ms(100),
            ..EngineConfig::default()
        };
        Self::with(config, replicas)
    }

    fn with(config: EngineConfig, replicas: &[&[u64]]) -> Self {
        let mut scenario = Self {
            engine: Engine::new(config),
            requests: 0,
        };
        let limits = ModelLimits {
            max_batch_rows: 8,
            max_batch_bytes: 1000,
            queue_limit: 20,
        };
        scenario.handle(0, registered(MODEL, limits));
        for (key, times) in (0..).zip(replicas) {
            let up = Event::ReplicaReady {
                replica: ReplicaKey(key),
                parameters: parameters(MODEL, times, 2),
            };
            assert!(scenario.handle(0, up).is_empty());
        }
        scenario
    }

    fn drain(&mut self, now: Time) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(action) = self.engine.poll(now) {
            lines.push(match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => {
                    let names: Vec<u64> = requests.iter().map(|request| request.0).collect();
                    format!("batch {} to {}: {names:?}", batch.0, replica.0)
                }
                Action::Finish { request, outcome } => format!("{}: {outcome:?}", request.0),
                Action::TenantPaused {
                    tenant,
                    losses,
                    pause,
                    ..
                } => format!("paused {} after {losses} for {pause:?}", tenant.0),
                Action::ReplicaEjected { replica, failures } => {
                    format!("ejected {} after {failures}", replica.0)
                }
                Action::Load { replica } => format!("load {}", replica.0),
                Action::Unload { replica, .. } => format!("unload {}", replica.0),
                Action::ReplicaRestored { replica } => format!("restored {}", replica.0),
                Action::ReplicaDrained { replica } => format!("drained {}", replica.0),
            });
        }
        lines
    }

    fn handle(&mut self, now: u64, event: Event) -> Vec<String> {
        self.engine.handle(at(now), event);
        self.drain(at(now))
    }

    /// Returns the next request; requests are numbered 0, 1, 2, … in the order of arrival.
    fn request(&mut self, deadline: u64) -> Request {
        let id = RequestKey(self.requests);
        self.requests += 1;
        Request {
            id,
            model: MODEL,
            tenant: TenantKey(0),
            rows: 1,
            bytes: 1,
            class: ShapeClass(0),
            priority: 0,
            may_fall_back: false,
            deadline: at(deadline),
            load_by: at(deadline),
        }
    }

    fn arrive(&mut self, now: u64, deadline: u64) -> Vec<String> {
        let request = self.request(deadline);
        self.handle(now, Event::RequestArrived(request))
    }

    fn done(&mut self, now: u64, batch: u64, compute: u64) -> Vec<String> {
        self.handle(
            now,
            Event::BatchCompleted {
                batch: BatchKey(batch),
                queue_wait: Duration::ZERO,
                compute: ms(compute),
            },
        )
    }

    fn failed(&mut self, now: u64, batch: u64, error: BatchError) -> Vec<String> {
        let batch = BatchKey(batch);
        self.handle(now, Event::BatchFailed { batch, error })
    }

    fn lost(&mut self, now: u64, replica: u32) -> Vec<String> {
        self.handle(
            now,
            Event::ReplicaLost {
                replica: ReplicaKey(replica),
            },
        )
    }
}

const FLAT: &[u64] = &[10, 10, 10, 10];

#[test]
fn an_idle_replica_takes_a_request_at_once() {
    let mut scenario = Scenario::new(&[FLAT]);
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 0: [0]"]);
    assert!(scenario.done(10, 0, 10).is_empty());
    assert_eq!(
        scenario.engine.books(),
        Books {
            accepted: 1,
            answered: 1,
            ..Books::default()
        }
    );
    assert_eq!(scenario.engine.poll_timeout(), None);
}

#[test]
fn requests_wait_at_the_gateway_and_not_at_the_replica() {
    let mut scenario = Scenario::new(&[FLAT]);
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 0: [0]"]);
    assert_eq!(scenario.arrive(1, 101), ["batch 1 to 0: [1]"]);
    for arrival in 2..7 {
        assert!(
            scenario.arrive(arrival, 100 + arrival).is_empty(),
            "both credits are used"
        );
    }
    assert_eq!(scenario.engine.queued(MODEL), 5);
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2, 3, 4, 5]"]);
    assert_eq!(scenario.done(20, 1, 10), ["batch 3 to 0: [6]"]);
}

#[test]
fn work_goes_to_the_replica_that_is_done_first() {
    let mut scenario = Scenario::new(&[&[30, 30], &[10, 10]]);
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 1: [0]"]);
    assert_eq!(scenario.arrive(1, 100), ["batch 1 to 1: [1]"]);
    assert_eq!(scenario.arrive(2, 100), ["batch 2 to 0: [2]"]);
}

#[test]
fn the_earliest_deadline_goes_first() {
    let mut scenario = Scenario::new(&[&[10]]);
    scenario.arrive(0, 100);
    scenario.arrive(0, 100);
    for deadline in [90, 60, 75] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [3]"]);
    assert_eq!(scenario.done(20, 1, 10), ["batch 3 to 0: [4]"]);
    assert_eq!(scenario.done(30, 2, 10), ["batch 4 to 0: [2]"]);
}

#[test]
fn a_batch_grows_only_as_far_as_its_earliest_deadline_allows() {
    let mut scenario = Scenario::new(&[&[10, 20, 30, 40]]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    // At 10 the second batch still takes until 20: with two rows the next one is back at 40, with three at 50.
    for deadline in [45, 300, 300] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2, 3]"]);
}

#[test]
fn only_equal_shape_classes_share_a_batch_and_none_blocks_the_other() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    for (class, deadline) in [(1, 100), (2, 101), (1, 102), (2, 103)] {
        let request = Request {
            class: ShapeClass(class),
            ..scenario.request(deadline)
        };
        assert!(
            scenario
                .handle(1, Event::RequestArrived(request))
                .is_empty()
        );
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2, 4]"]);
    assert_eq!(scenario.done(20, 1, 10), ["batch 3 to 0: [3, 5]"]);
}

#[test]
fn rows_fill_a_batch_and_not_requests() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    for rows in [3, 2, 1] {
        let request = Request {
            rows,
            ..scenario.request(200)
        };
        assert!(
            scenario
                .handle(1, Event::RequestArrived(request))
                .is_empty()
        );
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2]"]);
    assert_eq!(scenario.done(20, 1, 10), ["batch 3 to 0: [3, 4]"]);
}

#[test]
fn a_model_that_does_not_batch_gets_single_requests() {
    let mut scenario = Scenario::new(&[FLAT]);
    let limits = ModelLimits {
        max_batch_rows: 1,
        max_batch_bytes: 1000,
        queue_limit: 20,
    };
    scenario.handle(0, registered(MODEL, limits));
    for _ in 0..4 {
        scenario.arrive(0, 500);
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2]"]);
}

#[test]
fn priority_decides_among_contemporaries_but_starves_nobody() {
    let mut scenario = Scenario::new(&[&[10]]);
    scenario.arrive(0, 9_000);
    scenario.arrive(0, 9_000);
    for priority in [8, 0, 1] {
        let request = Request {
            priority,
            ..scenario.request(5_000)
        };
        scenario.handle(1, Event::RequestArrived(request));
    }
    // It has the highest priority, but is due so much later that the default one goes first.
    let late = Request {
        priority: 1,
        ..scenario.request(7_500)
    };
    scenario.handle(2, Event::RequestArrived(late));
    let order: Vec<String> = (0..4)
        .flat_map(|batch| scenario.done(10 * (batch + 1), batch, 10))
        .collect();
    assert_eq!(
        order,
        [
            "batch 2 to 0: [4]",
            "batch 3 to 0: [3]",
            "batch 4 to 0: [5]",
            "batch 5 to 0: [2]"
        ]
    );
}

#[test]
fn a_flood_of_the_highest_priority_leaves_something_for_the_lowest() {
    let mut scenario = Scenario::new(&[&[10]]);
    let mut low = std::collections::BTreeSet::new();
    let mut served = 0;
    for batch in 0..400 {
        let now = 10 * batch;
        let mut lines = if batch < 2 {
            Vec::new()
        } else {
            scenario.done(now, batch - 2, 10)
        };
        // The load is twice the capacity of the highest priority, and a tenth of the capacity of the lowest.
        for priority in [1, 1, 8]
            .into_iter()
            .take(if batch % 10 == 0 { 3 } else { 2 })
        {
            let request = Request {
                priority,
                ..scenario.request(now + 100)
            };
            if priority == 8 {
                low.insert(request.id.0);
            }
            lines.extend(scenario.handle(now, Event::RequestArrived(request)));
        }
        let is_low = |lines: &&String| {
            let names = lines
                .split('[')
                .nth(1)
                .map(|rest| rest.trim_end_matches(']'));
            names.is_some_and(|name| low.contains(&name.parse().unwrap()))
        };
        served += lines.iter().filter(is_low).count();
    }
    assert!((10..=30).contains(&served), "{served} of 40");
}

#[test]
fn requests_that_cannot_be_in_time_are_dropped_early_and_the_rest_is_served() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 100);
    scenario.arrive(0, 100);
    assert!(scenario.arrive(1, 35).is_empty());
    assert!(scenario.arrive(1, 60).is_empty());
    // The first batch took until 18, so that the second one ends after 28 and the next after 38.
    assert_eq!(
        scenario.done(18, 0, 10),
        ["2: Expired", "batch 2 to 0: [3]"]
    );
}

#[test]
fn a_request_expires_at_its_deadline_while_no_credit_is_free() {
    let mut scenario = Scenario::new(&[&[10]]);
    scenario.arrive(0, 100);
    scenario.arrive(0, 100);
    scenario.arrive(1, 50);
    assert_eq!(scenario.engine.poll_timeout(), Some(at(50)));
    assert!(scenario.drain(at(49)).is_empty());
    assert_eq!(scenario.drain(at(50)), ["2: Expired"]);
    assert_eq!(scenario.engine.poll_timeout(), None);
    assert_eq!(
        scenario.engine.books(),
        Books {
            accepted: 3,
            expired: 1,
            in_flight: 2,
            ..Books::default()
        }
    );
}

#[test]
fn a_head_that_only_the_busy_replica_can_serve_lets_others_pass() {
    let mut scenario = Scenario::new(&[&[10], &[80]]);
    scenario.arrive(0, 100);
    scenario.arrive(0, 100);
    // The request is due at 40: in time on the fast replica once it has a credit, never on the slow one.
    assert!(scenario.arrive(1, 40).is_empty());
    assert_eq!(scenario.arrive(1, 300), ["batch 2 to 1: [3]"]);
    assert_eq!(scenario.done(10, 0, 10), ["batch 3 to 0: [2]"]);
}

#[test]
fn requests_that_cannot_meet_their_deadline_are_refused_at_once() {
    let mut scenario = Scenario::new(&[&[10, 15]]);
    assert_eq!(scenario.arrive(0, 9), ["0: Refused(CannotMeetDeadline)"]);
    assert_eq!(scenario.arrive(0, 10), ["batch 0 to 0: [1]"]);
    assert_eq!(scenario.arrive(0, 19), ["2: Refused(CannotMeetDeadline)"]);
    let unknown = Request {
        model: ModelKey(9),
        ..scenario.request(100)
    };
    assert_eq!(
        scenario.handle(0, Event::RequestArrived(unknown)),
        ["3: Refused(UnknownModel)"]
    );
    assert_eq!(
        scenario.engine.books(),
        Books {
            refused: 3,
            accepted: 1,
            in_flight: 1,
            ..Books::default()
        }
    );
}

#[test]
fn a_request_with_more_rows_than_may_be_shared_is_a_batch_by_itself() {
    let mut scenario = Scenario::new(&[]);
    let narrow = ReplicaParameters {
        batch_size: 2,
        ..parameters(MODEL, FLAT, 1)
    };
    let up = Event::ReplicaReady {
        replica: ReplicaKey(0),
        parameters: narrow,
    };
    assert!(scenario.handle(0, up).is_empty());
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 0: [0]"]);
    let wide = |scenario: &mut Scenario, rows| Request {
        rows,
        ..scenario.request(101)
    };
    let four = wide(&mut scenario, 4);
    assert!(scenario.handle(1, Event::RequestArrived(four)).is_empty());
    assert!(scenario.arrive(1, 102).is_empty());
    assert!(scenario.arrive(1, 103).is_empty());
    assert_eq!(scenario.done(10, 0, 10), ["batch 1 to 0: [1]"]);
    assert_eq!(scenario.done(20, 1, 10), ["batch 2 to 0: [2, 3]"]);
    let five = wide(&mut scenario, 5);
    assert_eq!(
        scenario.handle(21, Event::RequestArrived(five)),
        ["4: Refused(CannotMeetDeadline)"]
    );
}

#[test]
fn a_batch_too_large_for_a_replica_is_tried_again_in_smaller_ones() {
    let mut scenario = Scenario::new(&[]);
    let up = Event::ReplicaReady {
        replica: ReplicaKey(0),
        parameters: parameters(MODEL, FLAT, 1),
    };
    assert!(scenario.handle(0, up).is_empty());
    assert_eq!(scenario.arrive(0, 500), ["batch 0 to 0: [0]"]);
    for _ in 0..4 {
        assert!(scenario.arrive(1, 500).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 1 to 0: [1, 2, 3, 4]"]);
    let fits = Event::BatchLimitLowered {
        replica: ReplicaKey(0),
        rows: 2,
    };
    assert!(scenario.handle(20, fits).is_empty());
    assert_eq!(
        scenario.failed(20, 1, BatchError::TooLarge),
        ["batch 2 to 0: [1, 2]"]
    );
    assert_eq!(scenario.done(30, 2, 10), ["batch 3 to 0: [3, 4]"]);
    assert!(scenario.done(40, 3, 10).is_empty());
    assert_eq!(scenario.engine.books().answered, 5);
    // A request of more rows than fit is refused.
    let wide = Request {
        rows: 3,
        ..scenario.request(500)
    };
    let refused = scenario.handle(40, Event::RequestArrived(wide));
    assert_eq!(refused, ["5: Refused(CannotMeetDeadline)"]);
}

#[test]
fn a_batch_is_split_as_often_as_memory_requires_and_loses_no_request() {
    let mut scenario = Scenario::new(&[]);
    let up = Event::ReplicaReady {
        replica: ReplicaKey(0),
        parameters: ReplicaParameters {
            batch_size: 8,
            ..parameters(MODEL, &[10; 8], 1)
        },
    };
    assert!(scenario.handle(0, up).is_empty());
    assert_eq!(scenario.arrive(0, 500), ["batch 0 to 0: [0]"]);
    for _ in 0..8 {
        assert!(scenario.arrive(1, 500).is_empty());
    }
    let all = "batch 1 to 0: [1, 2, 3, 4, 5, 6, 7, 8]";
    assert_eq!(scenario.done(10, 0, 10), [all]);
    let mut failed = |batch| scenario.failed(20, batch, BatchError::TooLarge);
    assert_eq!(failed(1), ["batch 2 to 0: [1, 2, 3, 4]"]);
    assert_eq!(failed(2), ["batch 3 to 0: [1, 2]"]);
    assert_eq!(failed(3), ["batch 4 to 0: [1]"]);
    for batch in 4..11 {
        let next = format!("batch {} to 0: [{}]", batch + 1, batch - 2);
        assert_eq!(scenario.done(10 * batch, batch, 10), [next]);
    }
    assert!(scenario.done(110, 11, 10).is_empty());
    assert_eq!(scenario.engine.books().answered, 9);
}

#[test]
fn one_long_request_without_memory_leaves_the_batches_of_short_ones_as_they_are() {
    let mut scenario = Scenario::new(&[]);
    let up = Event::ReplicaReady {
        replica: ReplicaKey(0),
        parameters: parameters(MODEL, FLAT, 1),
    };
    assert!(scenario.handle(0, up).is_empty());
    let long = |scenario: &mut Scenario, now: u64| {
        let request = Request {
            bytes: 200,
            class: ShapeClass(1),
            ..scenario.request(now + 500)
        };
        scenario.handle(now, Event::RequestArrived(request))
    };
    assert_eq!(scenario.arrive(0, 500), ["batch 0 to 0: [0]"]);
    for _ in 0..4 {
        assert!(long(&mut scenario, 1).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 1 to 0: [1, 2, 3, 4]"]);
    for _ in 0..4 {
        assert!(scenario.arrive(11, 600).is_empty());
    }
    assert_eq!(
        scenario.failed(20, 1, BatchError::TooLarge),
        ["batch 2 to 0: [1, 2]"]
    );
    assert_eq!(scenario.done(30, 2, 10), ["batch 3 to 0: [3, 4]"]);
    assert_eq!(scenario.done(40, 3, 10), ["batch 4 to 0: [5, 6, 7, 8]"]);
    // Half a minute later there may be memory for four of the long ones.
    assert_eq!(long(&mut scenario, 30_019), Vec::<String>::new());
    for _ in 0..3 {
        assert!(long(&mut scenario, 30_020).is_empty());
    }
    assert_eq!(
        scenario.done(30_020, 4, 10),
        ["batch 5 to 0: [9, 10, 11, 12]"]
    );
}

#[test]
fn a_request_that_is_too_large_again_and_again_is_given_up() {
    let mut scenario = Scenario::new(&[FLAT]);
    assert_eq!(scenario.arrive(0, 500), ["batch 0 to 0: [0]"]);
    for batch in 0..2 {
        let next = format!("batch {} to 0: [0]", batch + 1);
        assert_eq!(
            scenario.failed(batch + 1, batch, BatchError::TooLarge),
            [next]
        );
    }
    assert_eq!(scenario.failed(3, 2, BatchError::TooLarge), ["0: Lost"]);
}

#[test]
fn a_queue_that_cannot_be_worked_off_in_time_refuses() {
    let mut scenario = Scenario::new(&[&[10]]);
    let lines: Vec<String> = (0..20).flat_map(|_| scenario.arrive(0, 100)).collect();
    let refused = lines
        .iter()
        .filter(|lines| lines.ends_with("Refused(CannotMeetDeadline)"))
        .count();
    // Ten can be answered by then: none of them is refused, and only few that cannot be served are admitted.
    assert!((6..=10).contains(&refused), "{lines:?}");
    // A request that is due much later stands behind them all, one that is due sooner goes before: both are admitted.
    assert!(scenario.arrive(0, 1_000).is_empty());
    assert!(scenario.arrive(0, 50).is_empty());
}

#[test]
fn a_full_queue_refuses() {
    let mut scenario = Scenario::new(&[&[10]]);
    for _ in 0..22 {
        assert!(
            !scenario
                .arrive(0, 60_000)
                .iter()
                .any(|lines| lines.contains("Refused"))
        );
    }
    assert_eq!(
        scenario.arrive(0, 60_000),
        ["22: Refused(QueueFull { limit: 20 })"]
    );
}

#[test]
fn without_a_ready_replica_requests_are_refused_at_once() {
    let mut scenario = Scenario::new(&[]);
    assert_eq!(scenario.arrive(0, 100), ["0: Refused(NoReplica)"]);
    scenario.handle(
        0,
        Event::ReplicaReady {
            replica: ReplicaKey(7),
            parameters: parameters(MODEL, FLAT, 2),
        },
    );
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 7: [1]"]);
    assert!(
        scenario
            .handle(
                1,
                Event::ReplicaDraining {
                    replica: ReplicaKey(7)
                }
            )
            .is_empty()
    );
    assert_eq!(scenario.arrive(1, 100), ["2: Refused(NoReplica)"]);
}

#[test]
fn worker_dies_mid_batch_and_its_requests_are_retried_in_front() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    let lines: Vec<String> = (0..4).flat_map(|_| scenario.arrive(0, 100)).collect();
    assert_eq!(
        lines,
        [
            "batch 0 to 0: [0]",
            "batch 1 to 1: [1]",
            "batch 2 to 0: [2]",
            "batch 3 to 1: [3]"
        ]
    );
    assert!(scenario.arrive(1, 101).is_empty());
    assert!(
        scenario.lost(2, 0).is_empty(),
        "the other one has no credit free"
    );
    assert_eq!(scenario.engine.books().queued, 3);
    assert!(
        scenario.done(3, 0, 3).is_empty(),
        "an answer of the dead comes too late"
    );
    // The first of the two lost batches was computed, and its request may have been the cause.
    assert_eq!(scenario.done(10, 1, 10), ["batch 4 to 1: [0]"]);
    assert_eq!(scenario.done(20, 3, 10), ["batch 5 to 1: [2, 4]"]);
    scenario.done(30, 4, 10);
    scenario.done(40, 5, 10);
    assert_eq!(
        scenario.engine.books(),
        Books {
            accepted: 5,
            answered: 5,
            ..Books::default()
        }
    );
}

#[test]
fn a_request_that_kills_its_workers_is_lost_after_the_last_attempt() {
    let mut scenario = Scenario::new(&[FLAT, FLAT, FLAT, FLAT]);
    assert_eq!(scenario.arrive(0, 900), ["batch 0 to 0: [0]"]);
    assert_eq!(scenario.lost(1, 0), ["batch 1 to 1: [0]"]);
    assert_eq!(scenario.lost(2, 1), ["0: Lost"]);
    assert_eq!(
        scenario.engine.books(),
        Books {
            accepted: 1,
            lost: 1,
            ..Books::default()
        }
    );
}

#[test]
fn a_model_that_fails_on_everything_is_tried_again_for_a_fifth_of_its_requests() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    let (mut batch, mut retried) = (0, 0);
    for request in 0..200 {
        scenario.arrive(0, 900);
        let retry = scenario.failed(0, batch, BatchError::ModelFailed);
        batch += 1;
        let end = if retry.iter().any(|line| line.starts_with("batch")) {
            retried += 1;
            batch += 1;
            scenario.failed(0, batch - 1, BatchError::ModelFailed)
        } else {
            retry
        };
        assert!(end.contains(&format!("{request}: Failed")), "{end:?}");
    }
    // And a hundred in any ten seconds.
    assert_eq!(retried, 100 + 200 / 5);
}

#[test]
fn the_last_worker_dies_and_its_requests_wait_for_the_next_until_their_deadline() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 100);
    scenario.arrive(0, 60);
    assert!(scenario.lost(5, 0).is_empty());
    assert_eq!(scenario.arrive(6, 100), ["2: Refused(NoReplica)"]);
    assert_eq!(scenario.drain(at(60)), ["1: Lost"]);
    let up = Event::ReplicaReady {
        replica: ReplicaKey(1),
        parameters: parameters(MODEL, FLAT, 2),
    };
    assert_eq!(scenario.handle(80, up), ["batch 2 to 1: [0]"]);
}

#[test]
fn a_worker_that_dies_after_the_deadline_takes_its_requests_along() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    scenario.arrive(0, 20);
    assert_eq!(scenario.lost(20, 0), ["0: Lost"]);
}

#[test]
fn a_batch_that_failed_on_the_only_replica_is_not_retried() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 100);
    assert_eq!(
        scenario.failed(5, 0, BatchError::ModelFailed),
        ["0: Failed"]
    );
    assert_eq!(scenario.arrive(6, 100), ["batch 1 to 0: [1]"]);
    assert_eq!(
        scenario.engine.books(),
        Books {
            accepted: 2,
            failed: 1,
            in_flight: 1,
            ..Books::default()
        }
    );
}

#[test]
fn a_client_that_gives_up_leaves_the_queue_or_the_batch_without_a_word() {
    let mut scenario = Scenario::new(&[FLAT]);
    for _ in 0..4 {
        scenario.arrive(0, 100);
    }
    for request in [1, 2] {
        assert!(
            scenario
                .handle(
                    1,
                    Event::RequestCancelled {
                        request: RequestKey(request)
                    }
                )
                .is_empty()
        );
    }
    assert!(
        scenario
            .handle(
                1,
                Event::RequestCancelled {
                    request: RequestKey(1)
                }
            )
            .is_empty(),
        "a second time changes nothing"
    );
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [3]"]);
    scenario.done(20, 1, 10);
    scenario.done(30, 2, 10);
    assert_eq!(
        scenario.engine.books(),
        Books {
            accepted: 4,
            answered: 2,
            cancelled: 2,
            ..Books::default()
        }
    );
}

#[test]
fn a_draining_replica_finishes_what_it_has() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    scenario.arrive(0, 100);
    assert!(
        scenario
            .handle(
                1,
                Event::ReplicaDraining {
                    replica: ReplicaKey(0)
                }
            )
            .is_empty()
    );
    assert_eq!(
        scenario.handle(
            1,
            Event::ReplicaDraining {
                replica: ReplicaKey(1)
            }
        ),
        ["drained 1"]
    );
    assert_eq!(scenario.done(10, 0, 10), ["drained 0"]);
    assert!(scenario.lost(11, 0).is_empty(), "it is forgotten already");
    assert_eq!(scenario.engine.books().answered, 1);
}

#[test]
fn a_removed_model_gives_its_replicas_back_and_loses_its_waiting_requests() {
    let mut scenario = Scenario::new(&[&[10]]);
    for _ in 0..3 {
        scenario.arrive(0, 100);
    }
    assert_eq!(
        scenario.handle(1, Event::ModelRemoved { model: MODEL }),
        ["2: Lost"]
    );
    assert_eq!(scenario.arrive(2, 100), ["3: Refused(UnknownModel)"]);
    scenario.done(10, 0, 10);
    assert_eq!(scenario.done(20, 1, 10), ["drained 0"]);
    assert_eq!(
        scenario.engine.books(),
        Books {
            refused: 1,
            accepted: 3,
            answered: 2,
            lost: 1,
            ..Books::default()
        }
    );
    let up = Event::ReplicaReady {
        replica: ReplicaKey(5),
        parameters: parameters(MODEL, FLAT, 2),
    };
    assert_eq!(
        scenario.handle(21, up),
        ["drained 5"],
        "nobody needs it any more"
    );
}

#[test]
fn a_slow_replica_is_expected_to_be_slow_until_its_observations_are_old() {
    let mut scenario = Scenario::new(&[&[10, 20, 30, 40]]);
    let mut now = 0;
    for batch in 0..30 {
        scenario.arrive(now, now + 500);
        now += 20;
        scenario.done(now, batch, 20);
    }
    let slowdown =
        |scenario: &Scenario, now| scenario.engine.slowdown(at(now), ReplicaKey(0)).unwrap();
    assert!(slowdown(&scenario, now) > 1.8);
    // The request is due in 15 ms: in time by the profile alone, but not at twice its times.
    assert_eq!(
        scenario.arrive(now, now + 15),
        ["30: Refused(CannotMeetDeadline)"]
    );
    now += 10_000;
    assert!(slowdown(&scenario, now) < 1.01);
    assert_eq!(scenario.arrive(now, now + 15), ["batch 30 to 0: [31]"]);
}

#[test]
fn fixed_wait_fills_one_batch_after_the_other_for_the_replicas_in_turn() {
    let mut scenario = Scenario::fixed_wait(&[&[10, 10], &[10, 10, 10]]);
    let lines: Vec<String> = (0..10).flat_map(|now| scenario.arrive(now, 50)).collect();
    // The discipline checks neither free credits nor deadlines.
    assert_eq!(
        lines,
        [
            "batch 0 to 0: [0, 1]",
            "batch 1 to 1: [2, 3, 4]",
            "batch 2 to 0: [5, 6]",
            "batch 3 to 1: [7, 8, 9]"
        ]
    );
}

#[test]
fn fixed_wait_sends_a_partial_batch_when_its_first_request_has_waited_long_enough() {
    let mut scenario = Scenario::fixed_wait(&[FLAT, FLAT]);
    assert!(scenario.arrive(5, 20).is_empty());
    assert!(scenario.arrive(60, 70).is_empty());
    assert_eq!(scenario.engine.poll_timeout(), Some(at(105)));
    assert!(scenario.drain(at(104)).is_empty());
    assert_eq!(scenario.drain(at(105)), ["batch 0 to 0: [0, 1]"]);
    assert!(scenario.arrive(110, 111).is_empty());
    assert_eq!(scenario.drain(at(210)), ["batch 1 to 1: [2]"]);
    assert_eq!(scenario.engine.poll_timeout(), None);
}

#[test]
fn fixed_wait_keeps_an_open_batch_per_shape_class() {
    let mut scenario = Scenario::fixed_wait(&[&[10, 10]]);
    let mut arrive = |now, class| {
        let request = Request {
            class: ShapeClass(class),
            ..scenario.request(500)
        };
        scenario.handle(now, Event::RequestArrived(request))
    };
    assert!(arrive(0, 1).is_empty());
    assert!(arrive(1, 2).is_empty());
    assert_eq!(arrive(2, 2), ["batch 0 to 0: [1, 2]"]);
    assert_eq!(arrive(3, 1), ["batch 1 to 0: [0, 3]"]);
}

#[test]
fn the_discipline_is_switched_while_requests_wait() {
    let mut scenario = Scenario::fixed_wait(&[FLAT]);
    assert!(scenario.arrive(0, 200).is_empty());
    assert!(scenario.arrive(1, 150).is_empty());
    scenario
        .engine
        .set_discipline(at(2), DisciplineName::Deadline);
    assert_eq!(scenario.drain(at(2)), ["batch 0 to 0: [1, 0]"]);
    assert!(scenario.arrive(3, 90).is_empty(), "held");
    assert!(scenario.arrive(4, 90).is_empty());
    scenario
        .engine
        .set_discipline(at(5), DisciplineName::FixedWait);
    assert!(scenario.drain(at(5)).is_empty());
    assert_eq!(scenario.drain(at(103)), ["batch 1 to 0: [2, 3]"]);
}

#[test]
fn a_head_that_would_make_more_late_behind_it_is_skipped() {
    let mut scenario = Scenario::new(&[&[10, 12, 14, 16]]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    // When the second batch starts at 10, it is back at 20. The head can then only go alone: back at 30, and those behind it at
    // 46. Without it they are back at 36, in time.
    for deadline in [31, 40, 40, 40, 40] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(
        scenario.done(10, 0, 10),
        ["2: Expired", "batch 2 to 0: [3, 4, 5, 6]"]
    );
}

#[test]
fn a_head_goes_first_where_those_behind_it_can_wait() {
    let mut scenario = Scenario::new(&[&[10, 12, 14, 16]]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    for deadline in [31, 60, 60, 60, 60] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2]"]);
}

#[test]
fn a_head_waits_for_another_replica_where_those_behind_it_make_a_better_batch() {
    let times: &[u64] = &[10, 12, 14, 16];
    let mut scenario = Scenario::new(&[times, times]);
    for _ in 0..4 {
        scenario.arrive(0, 500);
    }
    for deadline in [31, 40, 40, 40, 40] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    // As with one replica; but the other replica, free at 20, has the head back at 30.
    assert_eq!(scenario.done(10, 0, 10), ["batch 4 to 0: [5, 6, 7, 8]"]);
    assert_eq!(scenario.done(10, 1, 10), ["batch 5 to 1: [4]"]);
}

#[test]
fn a_head_goes_first_where_only_those_behind_it_can_go_elsewhere() {
    // The second replica needs as long for one row as for four.
    let mut scenario = Scenario::new(&[&[10, 12, 14, 16], &[15, 15, 15, 15]]);
    for _ in 0..4 {
        scenario.arrive(0, 500);
    }
    // It is busy until 30: with the head it would be back at 45, with those behind it as well.
    for deadline in [31, 45, 45, 45, 45] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 4 to 0: [4]"]);
    assert_eq!(scenario.done(15, 1, 15), ["batch 5 to 1: [5, 6, 7, 8]"]);
}

#[test]
fn a_partial_batch_is_held_until_the_busy_replica_is_nearly_free() {
    let mut scenario = Scenario::holding(&[&[40, 40, 40, 40]]);
    assert_eq!(
        scenario.arrive(0, 500),
        ["batch 0 to 0: [0]"],
        "idle: at once"
    );
    assert!(scenario.arrive(1, 500).is_empty());
    assert!(scenario.arrive(20, 500).is_empty());
    // The next batch takes 40: it is sent a quarter of that before the replica is free.
    assert_eq!(scenario.engine.poll_timeout(), Some(at(30)));
    assert_eq!(scenario.drain(at(30)), ["batch 1 to 0: [1, 2]"]);
    assert!(scenario.arrive(31, 500).is_empty(), "both credits are used");
}

#[test]
fn a_replica_that_is_done_early_gets_the_held_batch_at_once() {
    let mut scenario = Scenario::holding(&[&[40, 40, 40, 40]]);
    scenario.arrive(0, 500);
    assert!(scenario.arrive(1, 500).is_empty());
    assert_eq!(scenario.done(5, 0, 5), ["batch 1 to 0: [1]"]);
}

#[test]
fn a_full_batch_is_not_held() {
    let mut scenario = Scenario::holding(&[&[40, 40]]);
    scenario.arrive(0, 500);
    assert!(scenario.arrive(1, 500).is_empty());
    assert_eq!(scenario.arrive(2, 500), ["batch 1 to 0: [1, 2]"]);
}

#[test]
fn a_held_batch_is_sent_early_enough_for_the_observed_overhead() {
    let mut scenario = Scenario::holding(&[&[40, 40, 40, 40]]);
    let mut now = 0;
    for batch in 0..40 {
        scenario.arrive(now, now + 500);
        now += 60;
        scenario.done(now, batch, 40);
    }
    scenario.arrive(now, now + 500);
    assert!(scenario.arrive(now + 1, now + 500).is_empty());
    // The overhead is 20 ms and the compute time 40: the batch is back after 60, and the next one is sent twice the 20 before
    // that.
    let until = scenario.engine.poll_timeout().unwrap();
    assert!((at(now + 19)..=at(now + 21)).contains(&until), "{until}");
}

/// Returns the next batch of a replica that computes any batch in 10 ms, after one whose input of 1 MB was so many milliseconds on its way, while
/// four others wait.
fn batch_after(way: u64, shares_memory: bool) -> Vec<String> {
    let mut scenario = Scenario::new(&[]);
    let limits = ModelLimits {
        max_batch_rows: 8,
        max_batch_bytes: u64::MAX,
        queue_limit: 20,
    };
    let model = MODEL;
    scenario.handle(0, registered(model, limits));
    let up = Event::ReplicaReady {
        replica: ReplicaKey(0),
        parameters: ReplicaParameters {
            shares_memory,
            ..parameters(MODEL, FLAT, 2)
        },
    };
    scenario.handle(0, up);
    for _ in 0..6 {
        let request = Request {
            bytes: 1_000_000,
            ..scenario.request(10_000)
        };
        scenario.handle(0, Event::RequestArrived(request));
    }
    scenario.done(way + 10, 0, 10)
}

#[test]
fn a_replica_gets_small_batches_where_its_link_is_slower_than_it_computes() {
    assert_eq!(batch_after(30, false), ["batch 2 to 0: [2, 3]"]);
    let [quick, shared] = [(4, false), (30, true)].map(|(way, shares)| batch_after(way, shares));
    assert_eq!(quick, ["batch 2 to 0: [2, 3, 4, 5]"]);
    assert_eq!(shared, quick);
}

#[test]
fn an_overloaded_replica_keeps_its_throughput() {
    // One row takes 10 ms, four take 13: 100 per second with single rows, 308 with four. The load is 250, each due after 40 ms.
    let mut scenario = Scenario::holding(&[&[10, 11, 12, 13]]);
    let mut pending: VecDeque<(u64, u64, u64)> = VecDeque::new();
    let (mut free, mut answered) = (0, 0);
    for now in 0..4_000 {
        let mut lines = Vec::new();
        if pending.front().is_some_and(|&(done, ..)| done <= now) {
            let (_, batch, compute) = pending.pop_front().unwrap();
            lines.extend(scenario.done(now, batch, compute));
        }
        if now % 4 == 0 {
            lines.extend(scenario.arrive(now, now + 40));
        }
        lines.extend(scenario.drain(at(now)));
        for batch in lines.iter().filter(|lines| lines.starts_with("batch")) {
            let number: u64 = batch.split(' ').nth(1).unwrap().parse().unwrap();
            let rows = batch.split(',').count() as u64;
            let compute = 9 + rows;
            free = now.max(free) + compute;
            pending.push_back((free, number, compute));
            answered += rows;
        }
    }
    assert!(answered > 950, "{answered} of 1000 answered");
}

#[test]
fn without_dropping_late_requests_are_served_in_full_batches() {
    let mut scenario = Scenario::with_options(|options| options.drop = false, &[&[10, 10]]);
    assert_eq!(scenario.arrive(0, 5), ["batch 0 to 0: [0]"]);
    assert!(scenario.arrive(1, 6).is_empty());
    assert_eq!(scenario.arrive(1, 6), ["batch 1 to 0: [1, 2]"]);
    assert!(scenario.arrive(1, 9).is_empty());
    assert!(scenario.arrive(1, 8).is_empty());
    assert!(scenario.drain(at(9)).is_empty());
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [4, 3]"]);
    // No replica is there to serve it: it ends at its deadline.
    assert!(scenario.arrive(11, 90).is_empty());
    assert!(scenario.lost(12, 0).contains(&"1: Lost".to_owned()));
    assert_eq!(scenario.drain(at(90)), ["5: Expired"]);
}

#[test]
fn without_looking_ahead_the_head_goes_first() {
    let mut scenario = Scenario::with_options(
        |options| (options.look_ahead, options.holding) = (false, false),
        &[&[10, 12, 14, 16]],
    );
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    for deadline in [31, 40, 40, 40, 40] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10)[0], "batch 2 to 0: [2]");
}

/// Returns a scenario with a second model on the same device or on another one.
fn with_neighbour(device: u32) -> Scenario {
    let mut scenario = Scenario::holding(&[&[10, 10, 10, 10]]);
    let model = ModelKey(1);
    let limits = ModelLimits {
        max_batch_rows: 4,
        max_batch_bytes: 1000,
        queue_limit: 20,
    };
    scenario.handle(0, registered(model, limits));
    let parameters = ReplicaParameters {
        device: DeviceKey(device),
        ..parameters(model, &[30], 2)
    };
    let replica = ReplicaKey(1);
    scenario.handle(
        0,
        Event::ReplicaReady {
            replica,
            parameters,
        },
    );
    scenario
}

/// Sends a request to the neighbour that takes 30 ms and has 20.
fn overload_neighbour(scenario: &mut Scenario, now: u64) {
    let request = Request {
        model: ModelKey(1),
        ..scenario.request(now + 20)
    };
    let lines = scenario.handle(now, Event::RequestArrived(request));
    assert!(
        lines[0].ends_with("Refused(CannotMeetDeadline)"),
        "{lines:?}"
    );
}

#[test]
fn a_partial_batch_grows_beside_an_overloaded_model_while_its_deadline_allows() {
    let mut scenario = with_neighbour(0);
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 0: [0]"], "at once");
    scenario.done(10, 0, 10);
    overload_neighbour(&mut scenario, 20);
    assert!(scenario.arrive(20, 120).is_empty());
    assert!(scenario.arrive(30, 130).is_empty());
    // The batch is sent twice its 10 ms before it is due.
    assert_eq!(scenario.engine.poll_timeout(), Some(at(100)));
    assert_eq!(scenario.drain(at(100)), ["batch 1 to 0: [2, 3]"]);
    scenario.done(110, 1, 10);
    // A full batch is not held, and neither is any batch once the neighbour has not been overloaded for long.
    let full = [110, 111, 112, 113].map(|now| scenario.arrive(now, 300));
    assert_eq!(full[3], ["batch 2 to 0: [4, 5, 6, 7]"]);
    scenario.done(123, 2, 10);
    assert_eq!(scenario.arrive(2_000, 2_100), ["batch 3 to 0: [8]"]);
}

#[test]
fn no_batch_is_held_for_seconds_beside_an_overloaded_model() {
    let mut scenario = with_neighbour(0);
    overload_neighbour(&mut scenario, 20);
    assert!(scenario.arrive(20, 20_000).is_empty());
    assert_eq!(scenario.engine.poll_timeout(), Some(at(270)));
    assert_eq!(scenario.drain(at(270)), ["batch 0 to 0: [1]"]);
}

#[test]
fn a_model_overloaded_on_another_device_is_no_reason_to_wait() {
    let mut scenario = with_neighbour(1);
    overload_neighbour(&mut scenario, 20);
    assert_eq!(scenario.arrive(20, 120), ["batch 0 to 0: [1]"]);
}

#[test]
fn a_busy_replica_that_is_rarely_punctual_gets_only_requests_with_time_to_spare() {
    let mut scenario = Scenario::new(&[&[20]]);
    let mut now = 0;
    for batch in 0..40 {
        scenario.arrive(now, now + 500);
        // Half of the batches take 15 ms, the others 25.
        let compute = if batch % 2 == 0 { 15 } else { 25 };
        now += compute;
        scenario.done(now, batch, compute);
    }
    assert_eq!(
        scenario.arrive(now, now + 30),
        ["batch 40 to 0: [40]"],
        "idle"
    );
    // Behind the batch of 20 ms it should be back after 40, give or take 5, and rarely 10.
    assert_eq!(
        scenario.arrive(now, now + 45),
        ["41: Refused(CannotMeetDeadline)"]
    );
    assert_eq!(scenario.arrive(now, now + 60), ["batch 41 to 0: [42]"]);
}

/// Serves four requests of the neighbour, due at `deadline`, until one of them waits.
fn queue_at_neighbour(deadline: u64) -> Scenario {
    let mut scenario = with_neighbour(0);
    for _ in 0..4 {
        let request = Request {
            model: ModelKey(1),
            ..scenario.request(deadline)
        };
        scenario.handle(0, Event::RequestArrived(request));
    }
    let next = scenario.done(30, 0, 30);
    assert_eq!(next, ["batch 2 to 1: [2]"], "and 3 waits");
    scenario
}

#[test]
fn a_model_whose_waiting_requests_may_be_late_is_overloaded() {
    let mut scenario = queue_at_neighbour(200);
    assert!(scenario.arrive(30, 130).is_empty());
    assert_eq!(scenario.drain(at(110)), ["batch 3 to 0: [4]"]);
}

/// Requests with a minute to live may wait in any number: their neighbours do not wait for them.
#[test]
fn a_queue_that_is_in_no_danger_holds_nobody_up() {
    let mut scenario = queue_at_neighbour(60_000);
    assert_eq!(scenario.arrive(30, 130), ["batch 3 to 0: [4]"]);
}

/// Working them off takes an eighth of the minute, and leaves seven.
#[test]
fn hundreds_of_requests_with_a_minute_to_live_hold_nobody_up() {
    let mut scenario = with_neighbour(0);
    let model = ModelKey(1);
    let limits = ModelLimits {
        max_batch_rows: 4,
        max_batch_bytes: 1000,
        queue_limit: 1000,
    };
    scenario.handle(0, registered(model, limits));
    for _ in 0..260 {
        let request = Request {
            model,
            ..scenario.request(60_000)
        };
        scenario.handle(0, Event::RequestArrived(request));
    }
    assert_eq!(scenario.done(30, 0, 30), ["batch 2 to 1: [2]"]);
    assert_eq!(scenario.arrive(30, 130), ["batch 3 to 0: [260]"], "at once");
}

#[test]
fn a_batch_that_deadlines_keep_small_is_held_for_a_busy_replica_too() {
    let mut scenario = Scenario::holding(&[&[40, 60, 80, 100]]);
    scenario.arrive(0, 500);
    // The request is back at 80 only if it goes alone; it is sent when the replica is nearly free.
    for deadline in [85, 150, 150] {
        assert!(scenario.arrive(1, deadline).is_empty());
    }
    assert_eq!(scenario.drain(at(30)), ["batch 1 to 0: [1]"]);
}

#[test]
fn a_batch_is_held_for_longer_once_batches_are_known_to_come_back_when_they_should() {
    let mut scenario = Scenario::holding(&[&[40, 60, 80, 100]]);
    for batch in 0..16 {
        let sent = scenario.arrive(40 * batch, 1000);
        assert_eq!(sent, [format!("batch {batch} to 0: [{batch}]")]);
        assert!(scenario.done(40 * (batch + 1), batch, 40).is_empty());
    }
    scenario.arrive(640, 1500);
    assert!(scenario.arrive(641, 1500).is_empty());
    assert!(
        scenario.drain(at(670)).is_empty(),
        "a quarter of the batch's time is left"
    );
    assert_eq!(scenario.drain(at(678)), ["batch 17 to 0: [17]"]);
}

/// Returns a scenario with replicas in which a batch of four requests, 4 to 7, has just failed on replica 0, and all else was answered.
fn failed_batch(replicas: &[&[u64]]) -> (Scenario, Vec<String>) {
    let mut scenario = Scenario::new(replicas);
    let credits = 2 * replicas.len() as u64;
    for _ in 0..credits {
        scenario.arrive(0, 500);
    }
    for _ in 0..4 {
        assert!(scenario.arrive(1, 500).is_empty());
    }
    let four: Vec<u64> = (credits..credits + 4).collect();
    let sent = scenario.done(10, 0, 10);
    assert_eq!(sent, [format!("batch {credits} to 0: {four:?}")]);
    for batch in 1..credits {
        scenario.done(11, batch, 10);
    }
    let parts = scenario.failed(12, credits, BatchError::ModelFailed);
    (scenario, parts)
}

#[test]
fn a_failed_batch_is_divided_on_other_replicas_until_the_request_at_fault_is_alone() {
    let (mut scenario, parts) = failed_batch(&[FLAT, FLAT]);
    assert_eq!(parts, ["batch 5 to 1: [4, 5]", "batch 6 to 1: [6, 7]"]);
    // The second of the four is at fault. The other replica fails on it too, so it goes back to the first, and then elsewhere alone.
    assert_eq!(
        scenario.failed(22, 5, BatchError::ModelFailed),
        ["batch 7 to 0: [4]", "batch 8 to 0: [5]"]
    );
    scenario.done(32, 6, 10);
    scenario.done(32, 7, 10);
    assert_eq!(
        scenario.failed(42, 8, BatchError::ModelFailed),
        ["5: Failed"]
    );
    let books = scenario.engine.books();
    assert_eq!((books.answered, books.failed, books.lost), (7, 1, 0));
}

#[test]
fn a_failed_batch_is_divided_on_the_only_replica() {
    let (mut scenario, parts) = failed_batch(&[FLAT]);
    assert_eq!(parts, ["batch 3 to 0: [2, 3]", "batch 4 to 0: [4, 5]"]);
    scenario.done(22, 3, 10);
    assert_eq!(
        scenario.failed(32, 4, BatchError::ModelFailed),
        ["batch 5 to 0: [4]", "batch 6 to 0: [5]"]
    );
    assert_eq!(
        scenario.failed(42, 5, BatchError::ModelFailed),
        ["4: Failed"]
    );
    scenario.done(52, 6, 10);
    let books = scenario.engine.books();
    assert_eq!((books.answered, books.failed, books.lost), (5, 1, 0));
}

#[test]
fn the_parts_of_a_failed_batch_end_as_lost_at_their_deadline() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    scenario.arrive(1, 30);
    scenario.arrive(1, 30);
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2, 3]"]);
    scenario.done(20, 1, 10);
    assert_eq!(
        scenario.failed(25, 2, BatchError::ModelFailed),
        ["2: Lost", "3: Lost"]
    );
}

#[test]
fn a_request_whose_neighbour_has_left_is_alone_and_does_not_read_its_error() {
    let mut scenario = Scenario::new(&[FLAT]);
    for deadline in [500, 500, 500, 500] {
        scenario.arrive(0, deadline);
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2, 3]"]);
    scenario.done(11, 1, 10);
    let request = RequestKey(2);
    scenario.handle(12, Event::RequestCancelled { request });
    assert_eq!(
        scenario.failed(20, 2, BatchError::ModelFailed),
        ["batch 3 to 0: [3]"]
    );
    assert!(scenario.done(30, 3, 10).is_empty());
}

/// A model that fails always gets no more batches than it has requests, and a few.
#[test]
fn a_model_that_fails_on_every_batch_is_not_divided_for_ever() {
    let mut scenario = Scenario::new(&[FLAT]);
    let (mut batch, mut batches, mut lost, mut failed) = (0, 0, 0, 0);
    let mut running: VecDeque<u64> = VecDeque::new();
    let requests = 4_000;
    for now in 0..requests * 3 {
        let mut lines = Vec::new();
        if now < requests {
            lines.extend(scenario.arrive(now, now + 100));
        }
        if now % 4 == 0
            && let Some(first) = running.pop_front()
        {
            lines.extend(scenario.failed(now, first, BatchError::ModelFailed));
        }
        lines.extend(scenario.drain(at(now)));
        for line in lines {
            if line.starts_with("batch") {
                running.push_back(batch);
                batch += 1;
                batches += 1;
            }
            lost += u64::from(line.ends_with("Lost"));
            failed += u64::from(line.ends_with("Failed"));
        }
    }
    assert_eq!(scenario.engine.books().in_flight, 0);
    assert!(failed > 0 && lost > failed, "{failed} failed, {lost} lost");
    // What it begins with, and ten a second; each division makes two batches.
    let divided = 2 * (256 + 10 * requests / 1000);
    assert!(batches < requests / 2 + divided, "{batches} batches");
}

#[test]
fn a_replica_is_not_ejected_for_batches_that_fail_elsewhere_too() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    let mut batch = 0;
    for round in 0..10 {
        let now = 50 * round;
        // One that replica 1 computes, and one that fails everywhere.
        assert_eq!(scenario.arrive(now, now + 400).len(), 1);
        let lines = scenario.failed(now, batch, BatchError::ModelFailed);
        assert_eq!(
            lines,
            [format!("batch {} to 1: [{}]", batch + 1, 2 * round)]
        );
        let end = scenario.failed(now + 1, batch + 1, BatchError::ModelFailed);
        assert_eq!(end, [format!("{}: Failed", 2 * round)]);
        let busy = Request {
            tenant: TenantKey(1),
            ..scenario.request(now + 400)
        };
        let lines = scenario.handle(now + 2, Event::RequestArrived(busy));
        assert_eq!(lines.len(), 1, "{lines:?}");
        scenario.done(now + 12, batch + 2, 10);
        batch += 3;
    }
}

/// A broken replica fails at once, so that it is always idle and always first.
#[test]
fn a_replica_that_fails_every_batch_at_once_is_ejected_probed_and_restored() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    let (mut now, mut batch, mut lines) = (0, 0, Vec::new());
    let serve = |scenario: &mut Scenario, now: u64, batch: &mut u64, broken: bool| {
        let mut reports = Vec::new();
        let mut dispatched = scenario.arrive(now, now + 100);
        while let Some(line) = dispatched.first() {
            if !line.starts_with("batch") {
                reports.push(dispatched.remove(0));
                continue;
            }
            dispatched = if broken && line.contains("to 0") {
                scenario.failed(now, *batch, BatchError::ModelFailed)
            } else {
                scenario.done(now + 10, *batch, 10)
            };
            *batch += 1;
        }
        reports
    };
    while now < 100 {
        lines.extend(serve(&mut scenario, now, &mut batch, true));
        now += 20;
    }
    assert_eq!(lines, ["ejected 0 after 3"]);
    // The probe fails: no request does, and nothing is reported.
    let before = batch;
    while now < 2500 {
        assert!(serve(&mut scenario, now, &mut batch, true).is_empty());
        now += 20;
    }
    assert_eq!(
        batch - before,
        (2500 - 100) / 20 + 1,
        "one batch more for the probe"
    );
    while now < 3000 {
        assert!(serve(&mut scenario, now, &mut batch, false).is_empty());
        now += 20;
    }
    while now < 3200 {
        lines.extend(serve(&mut scenario, now, &mut batch, false));
        now += 20;
    }
    assert_eq!(lines[1..], ["restored 0"]);
    let books = scenario.engine.books();
    assert_eq!((books.failed, books.lost, books.expired), (0, 0, 0));
}

#[test]
fn requests_that_fail_everywhere_eject_no_replica() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    let mut batch = 0;
    for request in 0..20 {
        let now = 10 * request;
        scenario.arrive(now, now + 100);
        let again = scenario.failed(now, batch, BatchError::ModelFailed);
        assert_eq!(again.len(), 1, "{again:?}");
        let end = scenario.failed(now + 1, batch + 1, BatchError::ModelFailed);
        assert_eq!(end, [format!("{request}: Failed")]);
        batch += 2;
    }
}

#[test]
fn an_ejected_replica_is_tried_at_once_when_the_others_are_gone() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    for batch in [0, 2, 4] {
        let now = 10 * batch;
        assert_eq!(
            scenario.arrive(now, 500),
            [format!("batch {batch} to 0: [{}]", batch / 2)]
        );
        scenario.failed(now, batch, BatchError::ModelFailed);
        scenario.done(now + 10, batch + 1, 10);
    }
    assert_eq!(scenario.arrive(60, 500), ["batch 6 to 1: [3]"]);
    assert_eq!(scenario.lost(61, 1), ["batch 7 to 0: [3]"]);
    assert_eq!(scenario.done(62, 7, 1), ["restored 0"]);
}

#[test]
fn a_poison_request_kills_two_workers_and_takes_nobody_along() {
    let mut scenario = Scenario::new(&[FLAT, FLAT, FLAT, FLAT]);
    for _ in 0..8 {
        scenario.arrive(0, 900);
    }
    for _ in 0..3 {
        assert!(scenario.arrive(1, 900).is_empty());
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 8 to 0: [8, 9, 10]"]);
    scenario.done(10, 4, 10);
    // Request 9 is the poison. Those of its batch travel alone from now on.
    let mut held: Vec<String> = scenario.lost(11, 0);
    for batch in [1, 2, 3, 5, 6, 7] {
        held.extend(scenario.done(12, batch, 10));
    }
    assert_eq!(
        held,
        [
            "batch 9 to 1: [8]",
            "batch 10 to 2: [9]",
            "batch 11 to 3: [10]"
        ]
    );
    assert_eq!(scenario.lost(13, 2), ["9: Lost"], "it has killed two");
    scenario.done(14, 9, 1);
    scenario.done(14, 11, 1);
    let books = scenario.engine.books();
    assert_eq!((books.answered, books.lost), (10, 1));
}

#[test]
fn requests_behind_a_batch_that_hangs_wait_again_as_if_they_had_not_been_sent() {
    let mut scenario = Scenario::new(&[FLAT]);
    scenario.arrive(0, 90_000);
    scenario.arrive(0, 90_000);
    let ejected = scenario.failed(15_000, 0, BatchError::TimedOut);
    assert_eq!(ejected, ["ejected 0 after 0"]);
    assert!(scenario.failed(15_000, 1, BatchError::NotBegun).is_empty());
    assert!(
        scenario.lost(15_001, 0).is_empty(),
        "nothing was sent to a worker that ends"
    );
    for replica in 1..4 {
        let up = Event::ReplicaReady {
            replica: ReplicaKey(replica),
            parameters: parameters(MODEL, FLAT, 1),
        };
        scenario.handle(15_000 + u64::from(replica), up);
    }
    // The first travels alone, and hangs again.
    assert_eq!(
        scenario.failed(30_000, 2, BatchError::TimedOut),
        ["ejected 1 after 0", "0: Failed"]
    );
    scenario.done(30_001, 3, 10);
    let books = scenario.engine.books();
    assert_eq!((books.answered, books.failed, books.lost), (1, 1, 0));
}

#[test]
fn a_batch_that_would_have_too_many_bytes_is_split_and_a_large_request_goes_alone() {
    let mut scenario = Scenario::new(&[&[10; 8]]);
    scenario.arrive(0, 500);
    scenario.arrive(0, 500);
    for bytes in [400, 400, 400, 5000, 1] {
        let request = Request {
            bytes,
            ..scenario.request(500)
        };
        assert!(
            scenario
                .handle(1, Event::RequestArrived(request))
                .is_empty()
        );
    }
    assert_eq!(scenario.done(10, 0, 10), ["batch 2 to 0: [2, 3]"]);
    assert_eq!(scenario.done(20, 1, 10), ["batch 3 to 0: [4]"]);
    assert_eq!(scenario.done(30, 2, 10), ["batch 4 to 0: [5]"]);
    assert_eq!(scenario.done(40, 3, 10), ["batch 5 to 0: [6]"]);
}

/// Loses a replica, and has it come back.
fn drop_connection(scenario: &mut Scenario, now: u64, replica: u32) -> Vec<String> {
    let mut lines = scenario.lost(now, replica);
    let up = Event::ReplicaReady {
        replica: ReplicaKey(replica),
        parameters: parameters(MODEL, FLAT, 2),
    };
    lines.extend(scenario.handle(now, up));
    lines
}

#[test]
fn a_replica_that_is_lost_with_every_batch_is_ejected_probed_and_restored() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    for round in 0..3 {
        let (now, batch) = (20 * round, 2 * round);
        assert_eq!(
            scenario.arrive(now, now + 100),
            [format!("batch {batch} to 0: [{round}]")]
        );
        let mut lines = drop_connection(&mut scenario, now + 1, 0);
        assert_eq!(
            lines.remove(0),
            format!("batch {} to 1: [{round}]", batch + 1)
        );
        let ejected = ["ejected 0 after 3".to_owned()];
        assert_eq!(lines, ejected[..usize::from(round == 2)]);
        scenario.done(now + 11, batch + 1, 10);
    }
    // It gets nothing until it is probed. The probe is lost, and the next one after twice the time.
    assert_eq!(scenario.arrive(100, 200), ["batch 6 to 1: [3]"]);
    scenario.done(110, 6, 10);
    assert_eq!(scenario.arrive(1_100, 1_200), ["batch 7 to 0: [4]"]);
    assert_eq!(
        drop_connection(&mut scenario, 1_101, 0),
        ["batch 8 to 1: [4]", "ejected 0 after 4"]
    );
    scenario.done(1_111, 8, 10);
    assert_eq!(scenario.arrive(3_000, 3_100), ["batch 9 to 1: [5]"]);
    scenario.done(3_010, 9, 10);
    assert_eq!(scenario.arrive(3_200, 3_300), ["batch 10 to 0: [6]"]);
    assert_eq!(scenario.done(3_210, 10, 10), ["restored 0"]);
}

#[test]
fn a_replica_that_is_lost_without_a_batch_or_now_and_then_is_not_ejected() {
    let mut scenario = Scenario::new(&[FLAT, FLAT]);
    for round in 0..10 {
        let now = 40 * round;
        assert!(drop_connection(&mut scenario, now, 0).is_empty());
        scenario.arrive(now, now + 100);
        scenario.arrive(now, now + 100);
        scenario.done(now + 10, 2 * round, 10);
        scenario.done(now + 10, 2 * round + 1, 10);
    }
}

/// A request of a tenant other than that of [`Scenario::arrive`].
fn arrive_from(scenario: &mut Scenario, tenant: u64, now: u64, deadline: u64) -> Vec<String> {
    let request = Request {
        tenant: TenantKey(tenant),
        ..scenario.request(deadline)
    };
    scenario.handle(now, Event::RequestArrived(request))
}

#[test]
fn a_tenant_whose_request_ended_two_workers_is_refused_and_then_has_one_request_at_a_time() {
    let mut scenario = Scenario::new(&[FLAT, FLAT, FLAT, FLAT]);
    assert_eq!(scenario.arrive(0, 100), ["batch 0 to 0: [0]"]);
    scenario.done(10, 0, 10);
    let mut lines = arrive_from(&mut scenario, 1, 20, 900);
    assert_eq!(lines, ["batch 1 to 0: [1]"]);
    lines = scenario.lost(21, 0);
    assert_eq!(lines, ["batch 2 to 2: [1]"], "alone, on one replica");
    assert_eq!(scenario.lost(22, 2), ["paused 1 after 1 for 5s", "1: Lost"]);
    assert_eq!(
        arrive_from(&mut scenario, 1, 23, 900),
        ["2: Refused(TenantPaused { retry_after: 4.999s })"]
    );
    assert_eq!(scenario.arrive(24, 124).len(), 1, "the other one is served");
    scenario.done(34, 3, 10);
    // After the pause it has one at a time, and nothing is sent behind it.
    assert_eq!(arrive_from(&mut scenario, 1, 5_100, 6_000).len(), 1);
    assert_eq!(
        arrive_from(&mut scenario, 1, 5_100, 6_000),
        ["5: Refused(TenantPaused { retry_after: 1s })"]
    );
    for request in 6..10 {
        let sent = scenario.arrive(5_101, 6_000);
        let behind = sent.iter().any(|line| line.contains("to 3"));
        assert!(!behind, "{request}: {sent:?}");
    }
    scenario.done(5_110, 4, 10);
    assert_ne!(
        arrive_from(&mut scenario, 1, 5_111, 6_000),
        ["10: Refused(TenantPaused { retry_after: 1s })"]
    );
}

#[test]
fn a_tenant_alone_is_not_paused() {
    let mut scenario = Scenario::new(&[FLAT, FLAT, FLAT, FLAT]);
    scenario.arrive(0, 900);
    assert_eq!(scenario.lost(1, 0), ["batch 1 to 1: [0]"]);
    assert_eq!(scenario.lost(2, 1), ["0: Lost"]);
    assert_eq!(scenario.arrive(3, 900), ["batch 2 to 2: [1]"]);
}
