//! One story each, at hand-made times.

use super::*;

/// An engine with one model, whose actions are told in one line each.
struct Stage {
    engine: Engine,
    requests: u64,
}

impl Stage {
    /// One model of at most 8 rows; replicas 0, 1, … that need so many milliseconds for 1, 2, … rows, with two credits each. A
    /// free credit takes work at once, so that it takes few steps to make requests wait: partial batches are not held.
    fn new(replicas: &[&[u64]]) -> Self {
        Self::with_options(|options| options.holding = false, replicas)
    }

    /// The same, with partial batches held.
    fn holding(replicas: &[&[u64]]) -> Self {
        Self::with(EngineConfig::default(), replicas)
    }

    fn with_options(change: fn(&mut DeadlineOptions), replicas: &[&[u64]]) -> Self {
        let mut config = EngineConfig::default();
        change(&mut config.deadline);
        Self::with(config, replicas)
    }

    /// The same with `fixed-wait`, which holds an open batch for 100 ms.
    fn fixed_wait(replicas: &[&[u64]]) -> Self {
        let config = EngineConfig {
            discipline: DisciplineName::FixedWait,
            max_batch_wait: ms(100),
            ..EngineConfig::default()
        };
        Self::with(config, replicas)
    }

    fn with(config: EngineConfig, replicas: &[&[u64]]) -> Self {
        let mut stage = Self {
            engine: Engine::new(config),
            requests: 0,
        };
        let limits = ModelLimits {
            max_batch_rows: 8,
            queue_limit: 20,
        };
        stage.tell(
            0,
            Event::ModelUp {
                model: MODEL,
                limits,
            },
        );
        for (key, times) in (0..).zip(replicas) {
            let up = Event::ReplicaUp {
                replica: ReplicaKey(key),
                spec: spec(MODEL, times, 2),
            };
            assert!(stage.tell(0, up).is_empty());
        }
        stage
    }

    fn drain(&mut self, now: Time) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(action) = self.engine.poll(now) {
            told.push(match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => {
                    let names: Vec<u64> = requests.iter().map(|request| request.0).collect();
                    format!("batch {} to {}: {names:?}", batch.0, replica.0)
                }
                Action::Finish { request, outcome } => format!("{}: {outcome:?}", request.0),
                Action::Drained { replica } => format!("drained {}", replica.0),
            });
        }
        told
    }

    fn tell(&mut self, now: u64, event: Event) -> Vec<String> {
        self.engine.handle(at(now), event);
        self.drain(at(now))
    }

    /// The next request: numbered 0, 1, 2, … in the order of arrival.
    fn request(&mut self, deadline: u64) -> Request {
        let id = RequestId(self.requests);
        self.requests += 1;
        Request {
            id,
            model: MODEL,
            rows: 1,
            class: ShapeClass(0),
            priority: 0,
            deadline: at(deadline),
        }
    }

    fn arrive(&mut self, now: u64, deadline: u64) -> Vec<String> {
        let request = self.request(deadline);
        self.tell(now, Event::Arrive(request))
    }

    fn done(&mut self, now: u64, batch: u64, compute: u64) -> Vec<String> {
        self.tell(
            now,
            Event::BatchDone {
                batch: BatchId(batch),
                queue_wait: Duration::ZERO,
                compute: ms(compute),
            },
        )
    }

    fn lost(&mut self, now: u64, replica: u32) -> Vec<String> {
        self.tell(
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
    let mut stage = Stage::new(&[FLAT]);
    assert_eq!(stage.arrive(0, 100), ["batch 0 to 0: [0]"]);
    assert!(stage.done(10, 0, 10).is_empty());
    assert_eq!(
        stage.engine.books(),
        Books {
            accepted: 1,
            answered: 1,
            ..Books::default()
        }
    );
    assert_eq!(stage.engine.poll_timeout(), None);
}

#[test]
fn requests_wait_at_the_gateway_and_not_at_the_replica() {
    let mut stage = Stage::new(&[FLAT]);
    assert_eq!(stage.arrive(0, 100), ["batch 0 to 0: [0]"]);
    assert_eq!(stage.arrive(1, 101), ["batch 1 to 0: [1]"]);
    for arrival in 2..7 {
        assert!(
            stage.arrive(arrival, 100 + arrival).is_empty(),
            "both credits are used"
        );
    }
    assert_eq!(stage.engine.queued(MODEL), 5);
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [2, 3, 4, 5]"]);
    assert_eq!(stage.done(20, 1, 10), ["batch 3 to 0: [6]"]);
}

#[test]
fn work_goes_to_the_replica_that_is_done_first() {
    let mut stage = Stage::new(&[&[30, 30], &[10, 10]]);
    assert_eq!(stage.arrive(0, 100), ["batch 0 to 1: [0]"]);
    assert_eq!(stage.arrive(1, 100), ["batch 1 to 1: [1]"]);
    assert_eq!(stage.arrive(2, 100), ["batch 2 to 0: [2]"]);
}

#[test]
fn the_earliest_deadline_goes_first() {
    let mut stage = Stage::new(&[&[10]]);
    stage.arrive(0, 100);
    stage.arrive(0, 100);
    for deadline in [90, 60, 75] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [3]"]);
    assert_eq!(stage.done(20, 1, 10), ["batch 3 to 0: [4]"]);
    assert_eq!(stage.done(30, 2, 10), ["batch 4 to 0: [2]"]);
}

#[test]
fn a_batch_grows_only_as_far_as_its_earliest_deadline_allows() {
    let mut stage = Stage::new(&[&[10, 20, 30, 40]]);
    stage.arrive(0, 500);
    stage.arrive(0, 500);
    // At 10 the second batch still takes until 20: with two rows the next one is back at 40, with three at 50.
    for deadline in [45, 300, 300] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [2, 3]"]);
}

#[test]
fn only_equal_shape_classes_share_a_batch_and_none_blocks_the_other() {
    let mut stage = Stage::new(&[FLAT]);
    stage.arrive(0, 500);
    stage.arrive(0, 500);
    for (class, deadline) in [(1, 100), (2, 101), (1, 102), (2, 103)] {
        let request = Request {
            class: ShapeClass(class),
            ..stage.request(deadline)
        };
        assert!(stage.tell(1, Event::Arrive(request)).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [2, 4]"]);
    assert_eq!(stage.done(20, 1, 10), ["batch 3 to 0: [3, 5]"]);
}

#[test]
fn rows_fill_a_batch_and_not_requests() {
    let mut stage = Stage::new(&[FLAT]);
    stage.arrive(0, 500);
    stage.arrive(0, 500);
    for rows in [3, 2, 1] {
        let request = Request {
            rows,
            ..stage.request(200)
        };
        assert!(stage.tell(1, Event::Arrive(request)).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [2]"]);
    assert_eq!(stage.done(20, 1, 10), ["batch 3 to 0: [3, 4]"]);
}

#[test]
fn a_model_that_does_not_batch_gets_single_requests() {
    let mut stage = Stage::new(&[FLAT]);
    let limits = ModelLimits {
        max_batch_rows: 1,
        queue_limit: 20,
    };
    stage.tell(
        0,
        Event::ModelUp {
            model: MODEL,
            limits,
        },
    );
    for _ in 0..4 {
        stage.arrive(0, 500);
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [2]"]);
}

#[test]
fn priority_decides_among_contemporaries_but_starves_nobody() {
    let mut stage = Stage::new(&[&[10]]);
    stage.arrive(0, 9_000);
    stage.arrive(0, 9_000);
    for priority in [8, 0, 1] {
        let request = Request {
            priority,
            ..stage.request(5_000)
        };
        stage.tell(1, Event::Arrive(request));
    }
    // Of the highest priority, but due so much later that the default one goes first.
    let late = Request {
        priority: 1,
        ..stage.request(7_500)
    };
    stage.tell(2, Event::Arrive(late));
    let order: Vec<String> = (0..4)
        .flat_map(|batch| stage.done(10 * (batch + 1), batch, 10))
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
    let mut stage = Stage::new(&[&[10]]);
    let mut low = std::collections::BTreeSet::new();
    let mut served = 0;
    for batch in 0..400 {
        let now = 10 * batch;
        let mut told = if batch < 2 {
            Vec::new()
        } else {
            stage.done(now, batch - 2, 10)
        };
        // Twice what can be served of the highest priority, and a tenth of it of the lowest.
        for priority in [1, 1, 8]
            .into_iter()
            .take(if batch % 10 == 0 { 3 } else { 2 })
        {
            let request = Request {
                priority,
                ..stage.request(now + 100)
            };
            if priority == 8 {
                low.insert(request.id.0);
            }
            told.extend(stage.tell(now, Event::Arrive(request)));
        }
        let is_low = |told: &&String| {
            let names = told
                .split('[')
                .nth(1)
                .map(|rest| rest.trim_end_matches(']'));
            names.is_some_and(|name| low.contains(&name.parse().unwrap()))
        };
        served += told.iter().filter(is_low).count();
    }
    assert!((10..=30).contains(&served), "{served} of 40");
}

#[test]
fn what_cannot_make_it_is_dropped_early_and_the_rest_is_served() {
    let mut stage = Stage::new(&[FLAT]);
    stage.arrive(0, 100);
    stage.arrive(0, 100);
    assert!(stage.arrive(1, 35).is_empty());
    assert!(stage.arrive(1, 60).is_empty());
    // The first batch took until 18, so that the second one ends after 28 and the next after 38.
    assert_eq!(stage.done(18, 0, 10), ["2: Expired", "batch 2 to 0: [3]"]);
}

#[test]
fn a_request_expires_at_its_deadline_while_no_credit_is_free() {
    let mut stage = Stage::new(&[&[10]]);
    stage.arrive(0, 100);
    stage.arrive(0, 100);
    stage.arrive(1, 50);
    assert_eq!(stage.engine.poll_timeout(), Some(at(50)));
    assert!(stage.drain(at(49)).is_empty());
    assert_eq!(stage.drain(at(50)), ["2: Expired"]);
    assert_eq!(stage.engine.poll_timeout(), None);
    assert_eq!(
        stage.engine.books(),
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
    let mut stage = Stage::new(&[&[10], &[80]]);
    stage.arrive(0, 100);
    stage.arrive(0, 100);
    // Due at 40: in time on the fast replica once it has a credit, never on the slow one.
    assert!(stage.arrive(1, 40).is_empty());
    assert_eq!(stage.arrive(1, 300), ["batch 2 to 1: [3]"]);
    assert_eq!(stage.done(10, 0, 10), ["batch 3 to 0: [2]"]);
}

#[test]
fn hopeless_requests_are_refused_at_once() {
    let mut stage = Stage::new(&[&[10, 15]]);
    assert_eq!(stage.arrive(0, 9), ["0: Refused(Hopeless)"]);
    assert_eq!(stage.arrive(0, 10), ["batch 0 to 0: [1]"]);
    assert_eq!(stage.arrive(0, 19), ["2: Refused(Hopeless)"]);
    let unknown = Request {
        model: ModelKey(9),
        ..stage.request(100)
    };
    assert_eq!(
        stage.tell(0, Event::Arrive(unknown)),
        ["3: Refused(UnknownModel)"]
    );
    assert_eq!(
        stage.engine.books(),
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
    let mut stage = Stage::new(&[]);
    let narrow = ReplicaSpec {
        batch_size: 2,
        ..spec(MODEL, FLAT, 1)
    };
    let up = Event::ReplicaUp {
        replica: ReplicaKey(0),
        spec: narrow,
    };
    assert!(stage.tell(0, up).is_empty());
    assert_eq!(stage.arrive(0, 100), ["batch 0 to 0: [0]"]);
    let wide = |stage: &mut Stage, rows| Request {
        rows,
        ..stage.request(101)
    };
    let four = wide(&mut stage, 4);
    assert!(stage.tell(1, Event::Arrive(four)).is_empty());
    assert!(stage.arrive(1, 102).is_empty());
    assert!(stage.arrive(1, 103).is_empty());
    assert_eq!(stage.done(10, 0, 10), ["batch 1 to 0: [1]"]);
    assert_eq!(stage.done(20, 1, 10), ["batch 2 to 0: [2, 3]"]);
    let five = wide(&mut stage, 5);
    assert_eq!(
        stage.tell(21, Event::Arrive(five)),
        ["4: Refused(Hopeless)"]
    );
}

#[test]
fn what_was_too_large_for_a_replica_is_tried_again_in_smaller_batches() {
    let mut stage = Stage::new(&[]);
    let up = Event::ReplicaUp {
        replica: ReplicaKey(0),
        spec: spec(MODEL, FLAT, 1),
    };
    assert!(stage.tell(0, up).is_empty());
    assert_eq!(stage.arrive(0, 500), ["batch 0 to 0: [0]"]);
    for _ in 0..4 {
        assert!(stage.arrive(1, 500).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 1 to 0: [1, 2, 3, 4]"]);
    let fits = Event::ReplicaFits {
        replica: ReplicaKey(0),
        rows: 2,
    };
    assert!(stage.tell(20, fits).is_empty());
    let back = Event::BatchReturned { batch: BatchId(1) };
    assert_eq!(stage.tell(20, back), ["batch 2 to 0: [1, 2]"]);
    assert_eq!(stage.done(30, 2, 10), ["batch 3 to 0: [3, 4]"]);
    assert!(stage.done(40, 3, 10).is_empty());
    assert_eq!(stage.engine.books().answered, 5);
    // A request of more rows than fit has nowhere to go.
    let wide = Request {
        rows: 3,
        ..stage.request(500)
    };
    let refused = stage.tell(40, Event::Arrive(wide));
    assert_eq!(refused, ["5: Refused(Hopeless)"]);
}

#[test]
fn what_is_too_large_again_and_again_is_given_up() {
    let mut stage = Stage::new(&[FLAT]);
    assert_eq!(stage.arrive(0, 500), ["batch 0 to 0: [0]"]);
    for batch in 0..2 {
        let back = Event::BatchReturned {
            batch: BatchId(batch),
        };
        let next = format!("batch {} to 0: [0]", batch + 1);
        assert_eq!(stage.tell(batch + 1, back), [next]);
    }
    let back = Event::BatchReturned { batch: BatchId(2) };
    assert_eq!(stage.tell(3, back), ["0: Lost"]);
}

#[test]
fn a_queue_that_cannot_be_worked_off_in_time_refuses() {
    let mut stage = Stage::new(&[&[10]]);
    let told: Vec<String> = (0..20).flat_map(|_| stage.arrive(0, 100)).collect();
    let refused = told
        .iter()
        .filter(|told| told.ends_with("Refused(Hopeless)"))
        .count();
    // Ten can be answered by then: nobody of them is refused, and only few who cannot be served are let in.
    assert!((6..=10).contains(&refused), "{told:?}");
    // One that is due much later stands behind them all, one due sooner goes before: both have their chance.
    assert!(stage.arrive(0, 1_000).is_empty());
    assert!(stage.arrive(0, 50).is_empty());
}

#[test]
fn a_full_queue_refuses() {
    let mut stage = Stage::new(&[&[10]]);
    for _ in 0..22 {
        assert!(
            !stage
                .arrive(0, 60_000)
                .iter()
                .any(|told| told.contains("Refused"))
        );
    }
    assert_eq!(
        stage.arrive(0, 60_000),
        ["22: Refused(QueueFull { limit: 20 })"]
    );
}

#[test]
fn without_a_ready_replica_requests_are_refused_at_once() {
    let mut stage = Stage::new(&[]);
    assert_eq!(stage.arrive(0, 100), ["0: Refused(NoReplica)"]);
    stage.tell(
        0,
        Event::ReplicaUp {
            replica: ReplicaKey(7),
            spec: spec(MODEL, FLAT, 2),
        },
    );
    assert_eq!(stage.arrive(0, 100), ["batch 0 to 7: [1]"]);
    assert!(
        stage
            .tell(
                1,
                Event::ReplicaDraining {
                    replica: ReplicaKey(7)
                }
            )
            .is_empty()
    );
    assert_eq!(stage.arrive(1, 100), ["2: Refused(NoReplica)"]);
}

#[test]
fn worker_dies_mid_batch_and_its_requests_are_retried_in_front() {
    let mut stage = Stage::new(&[FLAT, FLAT]);
    let told: Vec<String> = (0..4).flat_map(|_| stage.arrive(0, 100)).collect();
    assert_eq!(
        told,
        [
            "batch 0 to 0: [0]",
            "batch 1 to 1: [1]",
            "batch 2 to 0: [2]",
            "batch 3 to 1: [3]"
        ]
    );
    assert!(stage.arrive(1, 101).is_empty());
    assert!(
        stage.lost(2, 0).is_empty(),
        "the other one has no credit free"
    );
    assert_eq!(stage.engine.books().queued, 3);
    assert!(
        stage.done(3, 0, 3).is_empty(),
        "an answer of the dead comes too late"
    );
    assert_eq!(stage.done(10, 1, 10), ["batch 4 to 1: [0, 2, 4]"]);
    stage.done(20, 3, 10);
    stage.done(30, 4, 10);
    assert_eq!(
        stage.engine.books(),
        Books {
            accepted: 5,
            answered: 5,
            ..Books::default()
        }
    );
}

#[test]
fn a_request_that_kills_its_workers_is_lost_after_the_last_attempt() {
    let mut stage = Stage::new(&[FLAT, FLAT, FLAT, FLAT]);
    assert_eq!(stage.arrive(0, 900), ["batch 0 to 0: [0]"]);
    assert_eq!(stage.lost(1, 0), ["batch 1 to 1: [0]"]);
    assert_eq!(stage.lost(2, 1), ["batch 2 to 2: [0]"]);
    assert_eq!(stage.lost(3, 2), ["0: Lost"]);
    assert_eq!(
        stage.engine.books(),
        Books {
            accepted: 1,
            lost: 1,
            ..Books::default()
        }
    );
}

#[test]
fn the_last_worker_dies_and_its_requests_wait_for_the_next_until_their_deadline() {
    let mut stage = Stage::new(&[FLAT]);
    stage.arrive(0, 100);
    stage.arrive(0, 60);
    assert!(stage.lost(5, 0).is_empty());
    assert_eq!(stage.arrive(6, 100), ["2: Refused(NoReplica)"]);
    assert_eq!(stage.drain(at(60)), ["1: Lost"]);
    let up = Event::ReplicaUp {
        replica: ReplicaKey(1),
        spec: spec(MODEL, FLAT, 2),
    };
    assert_eq!(stage.tell(80, up), ["batch 2 to 1: [0]"]);
}

#[test]
fn a_worker_that_dies_after_the_deadline_takes_its_requests_along() {
    let mut stage = Stage::new(&[FLAT, FLAT]);
    stage.arrive(0, 20);
    assert_eq!(stage.lost(20, 0), ["0: Lost"]);
}

#[test]
fn the_module_throws_and_nobody_tries_again() {
    let mut stage = Stage::new(&[FLAT]);
    stage.arrive(0, 100);
    assert_eq!(
        stage.tell(5, Event::BatchFailed { batch: BatchId(0) }),
        ["0: Failed"]
    );
    assert_eq!(stage.arrive(6, 100), ["batch 1 to 0: [1]"]);
    assert_eq!(
        stage.engine.books(),
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
    let mut stage = Stage::new(&[FLAT]);
    for _ in 0..4 {
        stage.arrive(0, 100);
    }
    for request in [1, 2] {
        assert!(
            stage
                .tell(
                    1,
                    Event::Cancel {
                        request: RequestId(request)
                    }
                )
                .is_empty()
        );
    }
    assert!(
        stage
            .tell(
                1,
                Event::Cancel {
                    request: RequestId(1)
                }
            )
            .is_empty(),
        "a second time changes nothing"
    );
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [3]"]);
    stage.done(20, 1, 10);
    stage.done(30, 2, 10);
    assert_eq!(
        stage.engine.books(),
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
    let mut stage = Stage::new(&[FLAT, FLAT]);
    stage.arrive(0, 100);
    assert!(
        stage
            .tell(
                1,
                Event::ReplicaDraining {
                    replica: ReplicaKey(0)
                }
            )
            .is_empty()
    );
    assert_eq!(
        stage.tell(
            1,
            Event::ReplicaDraining {
                replica: ReplicaKey(1)
            }
        ),
        ["drained 1"]
    );
    assert_eq!(stage.done(10, 0, 10), ["drained 0"]);
    assert!(stage.lost(11, 0).is_empty(), "it is forgotten already");
    assert_eq!(stage.engine.books().answered, 1);
}

#[test]
fn a_model_that_goes_gives_its_replicas_back_and_says_no_to_what_waits() {
    let mut stage = Stage::new(&[&[10]]);
    for _ in 0..3 {
        stage.arrive(0, 100);
    }
    assert_eq!(
        stage.tell(1, Event::ModelGone { model: MODEL }),
        ["2: Lost"]
    );
    assert_eq!(stage.arrive(2, 100), ["3: Refused(UnknownModel)"]);
    stage.done(10, 0, 10);
    assert_eq!(stage.done(20, 1, 10), ["drained 0"]);
    assert_eq!(
        stage.engine.books(),
        Books {
            refused: 1,
            accepted: 3,
            answered: 2,
            lost: 1,
            ..Books::default()
        }
    );
    let up = Event::ReplicaUp {
        replica: ReplicaKey(5),
        spec: spec(MODEL, FLAT, 2),
    };
    assert_eq!(
        stage.tell(21, up),
        ["drained 5"],
        "nobody needs it any more"
    );
}

#[test]
fn a_replica_that_proves_slow_is_believed_to_be_slow_until_news_are_old() {
    let mut stage = Stage::new(&[&[10, 20, 30, 40]]);
    let mut now = 0;
    for batch in 0..30 {
        stage.arrive(now, now + 500);
        now += 20;
        stage.done(now, batch, 20);
    }
    let slowdown = |stage: &Stage, now| stage.engine.slowdown(at(now), ReplicaKey(0)).unwrap();
    assert!(slowdown(&stage, now) > 1.8);
    // Due in 15 ms: in time by the profile alone, but not at twice its times.
    assert_eq!(stage.arrive(now, now + 15), ["30: Refused(Hopeless)"]);
    now += 10_000;
    assert!(slowdown(&stage, now) < 1.01);
    assert_eq!(stage.arrive(now, now + 15), ["batch 30 to 0: [31]"]);
}

#[test]
fn fixed_wait_fills_one_batch_after_the_other_for_the_replicas_in_turn() {
    let mut stage = Stage::fixed_wait(&[&[10, 10], &[10, 10, 10]]);
    let told: Vec<String> = (0..10).flat_map(|now| stage.arrive(now, 50)).collect();
    // Nobody asks whether a replica is free, or whether anybody is in time.
    assert_eq!(
        told,
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
    let mut stage = Stage::fixed_wait(&[FLAT, FLAT]);
    assert!(stage.arrive(5, 20).is_empty());
    assert!(stage.arrive(60, 70).is_empty());
    assert_eq!(stage.engine.poll_timeout(), Some(at(105)));
    assert!(stage.drain(at(104)).is_empty());
    assert_eq!(stage.drain(at(105)), ["batch 0 to 0: [0, 1]"]);
    assert!(stage.arrive(110, 111).is_empty());
    assert_eq!(stage.drain(at(210)), ["batch 1 to 1: [2]"]);
    assert_eq!(stage.engine.poll_timeout(), None);
}

#[test]
fn fixed_wait_keeps_an_open_batch_per_shape_class() {
    let mut stage = Stage::fixed_wait(&[&[10, 10]]);
    let mut arrive = |now, class| {
        let request = Request {
            class: ShapeClass(class),
            ..stage.request(500)
        };
        stage.tell(now, Event::Arrive(request))
    };
    assert!(arrive(0, 1).is_empty());
    assert!(arrive(1, 2).is_empty());
    assert_eq!(arrive(2, 2), ["batch 0 to 0: [1, 2]"]);
    assert_eq!(arrive(3, 1), ["batch 1 to 0: [0, 3]"]);
}

#[test]
fn the_discipline_is_switched_while_requests_wait() {
    let mut stage = Stage::fixed_wait(&[FLAT]);
    assert!(stage.arrive(0, 200).is_empty());
    assert!(stage.arrive(1, 150).is_empty());
    stage.engine.set_discipline(at(2), DisciplineName::Deadline);
    assert_eq!(stage.drain(at(2)), ["batch 0 to 0: [1, 0]"]);
    assert!(stage.arrive(3, 90).is_empty(), "held");
    assert!(stage.arrive(4, 90).is_empty());
    stage
        .engine
        .set_discipline(at(5), DisciplineName::FixedWait);
    assert!(stage.drain(at(5)).is_empty());
    assert_eq!(stage.drain(at(103)), ["batch 1 to 0: [2, 3]"]);
}

#[test]
fn a_head_that_would_make_more_late_behind_it_is_skipped() {
    let mut stage = Stage::new(&[&[10, 12, 14, 16]]);
    stage.arrive(0, 500);
    stage.arrive(0, 500);
    // When the second batch starts at 10, it is back at 20. The head can then only go alone: back at 30, and those behind it at
    // 46. Without it they are back at 36, in time.
    for deadline in [31, 40, 40, 40, 40] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(
        stage.done(10, 0, 10),
        ["2: Expired", "batch 2 to 0: [3, 4, 5, 6]"]
    );
}

#[test]
fn a_head_goes_first_where_those_behind_it_can_wait() {
    let mut stage = Stage::new(&[&[10, 12, 14, 16]]);
    stage.arrive(0, 500);
    stage.arrive(0, 500);
    for deadline in [31, 60, 60, 60, 60] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [2]"]);
}

#[test]
fn a_head_waits_for_another_replica_where_those_behind_it_make_a_better_batch() {
    let times: &[u64] = &[10, 12, 14, 16];
    let mut stage = Stage::new(&[times, times]);
    for _ in 0..4 {
        stage.arrive(0, 500);
    }
    for deadline in [31, 40, 40, 40, 40] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    // As with one replica; but the other one, free at 20, has the head back at 30.
    assert_eq!(stage.done(10, 0, 10), ["batch 4 to 0: [5, 6, 7, 8]"]);
    assert_eq!(stage.done(10, 1, 10), ["batch 5 to 1: [4]"]);
}

#[test]
fn a_head_goes_first_where_only_those_behind_it_can_go_elsewhere() {
    // The second replica needs as long for one row as for four.
    let mut stage = Stage::new(&[&[10, 12, 14, 16], &[15, 15, 15, 15]]);
    for _ in 0..4 {
        stage.arrive(0, 500);
    }
    // It is busy until 30: with the head it would be back at 45, with those behind it as well.
    for deadline in [31, 45, 45, 45, 45] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10), ["batch 4 to 0: [4]"]);
    assert_eq!(stage.done(15, 1, 15), ["batch 5 to 1: [5, 6, 7, 8]"]);
}

#[test]
fn a_partial_batch_is_held_until_the_busy_replica_is_nearly_free() {
    let mut stage = Stage::holding(&[&[40, 40, 40, 40]]);
    assert_eq!(stage.arrive(0, 500), ["batch 0 to 0: [0]"], "idle: at once");
    assert!(stage.arrive(1, 500).is_empty());
    assert!(stage.arrive(20, 500).is_empty());
    // The next batch takes 40: it is sent a quarter of that before the replica is free.
    assert_eq!(stage.engine.poll_timeout(), Some(at(30)));
    assert_eq!(stage.drain(at(30)), ["batch 1 to 0: [1, 2]"]);
    assert!(stage.arrive(31, 500).is_empty(), "both credits are used");
}

#[test]
fn a_replica_that_is_done_early_gets_the_held_batch_at_once() {
    let mut stage = Stage::holding(&[&[40, 40, 40, 40]]);
    stage.arrive(0, 500);
    assert!(stage.arrive(1, 500).is_empty());
    assert_eq!(stage.done(5, 0, 5), ["batch 1 to 0: [1]"]);
}

#[test]
fn a_full_batch_is_not_held() {
    let mut stage = Stage::holding(&[&[40, 40]]);
    stage.arrive(0, 500);
    assert!(stage.arrive(1, 500).is_empty());
    assert_eq!(stage.arrive(2, 500), ["batch 1 to 0: [1, 2]"]);
}

#[test]
fn a_held_batch_leaves_in_time_for_the_way_that_batches_were_seen_to_need() {
    let mut stage = Stage::holding(&[&[40, 40, 40, 40]]);
    let mut now = 0;
    for batch in 0..40 {
        stage.arrive(now, now + 500);
        now += 60;
        stage.done(now, batch, 40);
    }
    stage.arrive(now, now + 500);
    assert!(stage.arrive(now + 1, now + 500).is_empty());
    // 20 ms on the way and 40 of computing: back after 60, and twice the 20 before that the next one leaves.
    let until = stage.engine.poll_timeout().unwrap();
    assert!((at(now + 19)..=at(now + 21)).contains(&until), "{until}");
}

#[test]
fn an_overloaded_replica_keeps_its_throughput() {
    // 10 ms for one row, 13 for 4: with single rows 100 per second, with four 308. Asked for 250, each due after 40 ms.
    let mut stage = Stage::holding(&[&[10, 11, 12, 13]]);
    let mut pending: VecDeque<(u64, u64, u64)> = VecDeque::new();
    let (mut free, mut answered) = (0, 0);
    for now in 0..4_000 {
        let mut told = Vec::new();
        if pending.front().is_some_and(|&(done, ..)| done <= now) {
            let (_, batch, compute) = pending.pop_front().unwrap();
            told.extend(stage.done(now, batch, compute));
        }
        if now % 4 == 0 {
            told.extend(stage.arrive(now, now + 40));
        }
        told.extend(stage.drain(at(now)));
        for batch in told.iter().filter(|told| told.starts_with("batch")) {
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
fn without_dropping_what_is_late_is_served_in_full_batches() {
    let mut stage = Stage::with_options(|options| options.drop = false, &[&[10, 10]]);
    assert_eq!(stage.arrive(0, 5), ["batch 0 to 0: [0]"]);
    assert!(stage.arrive(1, 6).is_empty());
    assert_eq!(stage.arrive(1, 6), ["batch 1 to 0: [1, 2]"]);
    assert!(stage.arrive(1, 9).is_empty());
    assert!(stage.arrive(1, 8).is_empty());
    assert!(stage.drain(at(9)).is_empty());
    assert_eq!(stage.done(10, 0, 10), ["batch 2 to 0: [4, 3]"]);
    // Nobody is there to serve it: it ends at its deadline.
    assert!(stage.arrive(11, 90).is_empty());
    assert!(stage.lost(12, 0).contains(&"1: Lost".to_owned()));
    assert_eq!(stage.drain(at(90)), ["5: Expired"]);
}

#[test]
fn without_looking_ahead_the_head_goes_first() {
    let mut stage = Stage::with_options(
        |options| (options.look_ahead, options.holding) = (false, false),
        &[&[10, 12, 14, 16]],
    );
    stage.arrive(0, 500);
    stage.arrive(0, 500);
    for deadline in [31, 40, 40, 40, 40] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(stage.done(10, 0, 10)[0], "batch 2 to 0: [2]");
}

/// Beside the stage's model, another one on the same device or another.
fn with_neighbour(device: u32) -> Stage {
    let mut stage = Stage::holding(&[&[10, 10, 10, 10]]);
    let model = ModelKey(1);
    let limits = ModelLimits {
        max_batch_rows: 4,
        queue_limit: 20,
    };
    stage.tell(0, Event::ModelUp { model, limits });
    let spec = ReplicaSpec {
        device: DeviceKey(device),
        ..spec(model, &[30], 2)
    };
    let replica = ReplicaKey(1);
    stage.tell(0, Event::ReplicaUp { replica, spec });
    stage
}

/// A request of the neighbour that needs 30 ms and has 20.
fn neighbour_falls_short(stage: &mut Stage, now: u64) {
    let request = Request {
        model: ModelKey(1),
        ..stage.request(now + 20)
    };
    let told = stage.tell(now, Event::Arrive(request));
    assert!(told[0].ends_with("Refused(Hopeless)"), "{told:?}");
}

#[test]
fn beside_a_model_that_is_short_a_partial_batch_grows_while_its_deadline_lets_it() {
    let mut stage = with_neighbour(0);
    assert_eq!(stage.arrive(0, 100), ["batch 0 to 0: [0]"], "at once");
    stage.done(10, 0, 10);
    neighbour_falls_short(&mut stage, 20);
    assert!(stage.arrive(20, 120).is_empty());
    assert!(stage.arrive(30, 130).is_empty());
    // Twice the 10 ms that it takes before it is due.
    assert_eq!(stage.engine.poll_timeout(), Some(at(100)));
    assert_eq!(stage.drain(at(100)), ["batch 1 to 0: [2, 3]"]);
    stage.done(110, 1, 10);
    // A full batch has nothing to wait for, and neither has one once the neighbour has not been short for long.
    let full = [110, 111, 112, 113].map(|now| stage.arrive(now, 300));
    assert_eq!(full[3], ["batch 2 to 0: [4, 5, 6, 7]"]);
    stage.done(123, 2, 10);
    assert_eq!(stage.arrive(2_000, 2_100), ["batch 3 to 0: [8]"]);
}

#[test]
fn beside_a_model_that_is_short_nobody_waits_for_seconds_however_late_it_is_due() {
    let mut stage = with_neighbour(0);
    neighbour_falls_short(&mut stage, 20);
    assert!(stage.arrive(20, 20_000).is_empty());
    assert_eq!(stage.engine.poll_timeout(), Some(at(270)));
    assert_eq!(stage.drain(at(270)), ["batch 0 to 0: [1]"]);
}

#[test]
fn a_model_that_is_short_on_another_device_is_no_reason_to_wait() {
    let mut stage = with_neighbour(1);
    neighbour_falls_short(&mut stage, 20);
    assert_eq!(stage.arrive(20, 120), ["batch 0 to 0: [1]"]);
}

#[test]
fn a_busy_replica_that_is_rarely_punctual_gets_only_what_has_time_to_spare() {
    let mut stage = Stage::new(&[&[20]]);
    let mut now = 0;
    for batch in 0..40 {
        stage.arrive(now, now + 500);
        // Half of them 15 ms, the others 25.
        let compute = if batch % 2 == 0 { 15 } else { 25 };
        now += compute;
        stage.done(now, batch, compute);
    }
    assert_eq!(stage.arrive(now, now + 30), ["batch 40 to 0: [40]"], "idle");
    // Behind the one of 20 ms it should be back after 40, give or take 5, and rarely 10.
    assert_eq!(stage.arrive(now, now + 45), ["41: Refused(Hopeless)"]);
    assert_eq!(stage.arrive(now, now + 60), ["batch 41 to 0: [42]"]);
}

#[test]
fn a_model_that_leaves_as_many_waiting_as_it_serves_is_short() {
    let mut stage = with_neighbour(0);
    for _ in 0..4 {
        let request = Request {
            model: ModelKey(1),
            ..stage.request(500)
        };
        stage.tell(0, Event::Arrive(request));
    }
    assert_eq!(stage.done(30, 0, 30), ["batch 2 to 1: [2]"], "and 3 waits");
    assert!(stage.arrive(30, 130).is_empty());
    assert_eq!(stage.drain(at(110)), ["batch 3 to 0: [4]"]);
}

#[test]
fn a_batch_that_deadlines_keep_small_is_held_for_a_busy_replica_too() {
    let mut stage = Stage::holding(&[&[40, 60, 80, 100]]);
    stage.arrive(0, 500);
    // Back at 80 together with nobody, and those behind it later with one more: when the replica is nearly free.
    for deadline in [85, 150, 150] {
        assert!(stage.arrive(1, deadline).is_empty());
    }
    assert_eq!(stage.drain(at(30)), ["batch 1 to 0: [1]"]);
}
