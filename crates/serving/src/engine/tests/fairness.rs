//! Two tenants and one model: what each gets of it.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;

const OBJECTIVE: Duration = Duration::from_millis(200);
/// The rows of the largest batch. It takes 24 ms, so that a replica computes at most 667 rows per second.
const BATCH: u64 = 16;
const CAPACITY: f64 = 667.0;

/// The requests of a tenant, and those that were answered in time.
#[derive(Clone, Debug, Default)]
struct Count {
    sent: u64,
    in_time: u64,
    /// The times that its requests took, in ms.
    took: Vec<f64>,
}

/// A batch that the replica has, and when it is back.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AwayBatch {
    back: Time,
    batch: BatchKey,
    queue_wait: Duration,
    compute: Duration,
    requests: Vec<RequestKey>,
}

/// An engine with one replica, and tenants whose requests arrive as a Poisson process.
struct Run {
    engine: Engine,
    random: u64,
    requests: FxHashMap<RequestKey, (usize, Time)>,
    back: BinaryHeap<Reverse<AwayBatch>>,
    free: Time,
    /// The time of a batch without rows, and of each row, in ms.
    times: (u64, u64),
    counts: Vec<Count>,
}

impl Run {
    fn new(discipline: DisciplineName, queue_limit: usize) -> Self {
        Self::with_times(discipline, queue_limit, 8, 1)
    }

    /// Batches take `fixed` ms, and `per_row` ms more for each row.
    fn with_times(
        discipline: DisciplineName,
        queue_limit: usize,
        fixed: u64,
        per_row: u64,
    ) -> Self {
        let mut engine = Engine::new(EngineConfig {
            discipline,
            ..EngineConfig::default()
        });
        let limits = ModelLimits {
            max_batch_rows: 16,
            max_batch_bytes: 1000,
            queue_limit,
        };
        engine.handle(at(0), registered(MODEL, limits));
        let times: Vec<u64> = (1..=BATCH).map(|rows| fixed + per_row * rows).collect();
        engine.handle(
            at(0),
            Event::ReplicaReady {
                replica: ReplicaKey(0),
                parameters: parameters(MODEL, &times, 2),
            },
        );
        Self {
            engine,
            random: 7,
            requests: FxHashMap::default(),
            back: BinaryHeap::new(),
            free: at(0),
            times: (fixed, per_row),
            counts: Vec::new(),
        }
    }

    fn gap(&mut self, rate: f64) -> Duration {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let unit = ((self.random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-unit.ln() / rate)
    }

    /// Serves tenants with these rates, in parts of the capacity, for a time. Returns the part of each one's requests that was answered in time, and
    /// the rows per second of all of them in parts of the capacity.
    fn serve(self, rates: &[f64], seconds: u64) -> (Vec<f64>, f64) {
        let counts = self.counts_of(rates, seconds);
        let in_time: u64 = counts.iter().map(|count| count.in_time).sum();
        let parts = counts.iter();
        let parts = parts.map(|count| count.in_time as f64 / count.sent as f64);
        (parts.collect(), in_time as f64 / seconds as f64 / CAPACITY)
    }

    /// Serves tenants with these rates, in parts of the capacity, for a time.
    fn counts_of(mut self, rates: &[f64], seconds: u64) -> Vec<Count> {
        self.counts = vec![Count::default(); rates.len()];
        let mut next: Vec<Time> = rates.iter().map(|_| at(0)).collect();
        let end = at(1000 * seconds);
        let mut id = 0;
        loop {
            let (tenant, arrival) = (0..).zip(&next).min_by_key(|(_, at)| **at).expect("one");
            let (tenant, arrival): (usize, Time) = (tenant, *arrival);
            let back = self.back.peek().map(|Reverse(away)| away.back);
            let wake = self.engine.poll_timeout();
            let now = [Some(arrival), back, wake].into_iter().flatten().min();
            let now = now.expect("a request comes");
            if now >= end {
                break;
            }
            if back == Some(now) {
                self.batch_is_back(now);
            } else if arrival == now {
                next[tenant] = now + self.gap(rates[tenant] * CAPACITY);
                id += 1;
                self.counts[tenant].sent += 1;
                self.requests
                    .insert(RequestKey(id), (tenant, now + OBJECTIVE));
                let request = Request {
                    id: RequestKey(id),
                    model: MODEL,
                    tenant: TenantKey(tenant as u64),
                    rows: 1,
                    bytes: 1,
                    class: ShapeClass(0),
                    priority: 0,
                    may_fall_back: false,
                    deadline: now + OBJECTIVE,
                    load_by: now + OBJECTIVE,
                };
                self.engine.handle(now, Event::RequestArrived(request));
            }
            self.drain(now);
        }
        self.counts
    }

    fn batch_is_back(&mut self, now: Time) {
        let Reverse(away) = self.back.pop().expect("seen");
        let AwayBatch {
            batch,
            queue_wait,
            compute,
            requests,
            ..
        } = away;
        let done = Event::BatchCompleted {
            batch,
            queue_wait,
            compute,
        };
        self.engine.handle(now, done);
        for request in requests {
            let (tenant, due) = self.requests.remove(&request).expect("it was sent");
            self.counts[tenant].in_time += u64::from(now <= due);
            let took = now.saturating_since(due.saturating_sub(OBJECTIVE));
            self.counts[tenant].took.push(took.as_secs_f64() * 1e3);
        }
    }

    fn drain(&mut self, now: Time) {
        while let Some(action) = self.engine.poll(now) {
            match action {
                Action::Dispatch {
                    batch, requests, ..
                } => {
                    let (fixed, per_row) = self.times;
                    let compute = ms(fixed + per_row * requests.len() as u64);
                    let begin = self.free.max(now);
                    self.free = begin + compute;
                    let away = AwayBatch {
                        back: self.free,
                        batch,
                        queue_wait: begin.saturating_since(now),
                        compute,
                        requests,
                    };
                    self.back.push(Reverse(away));
                }
                Action::Finish { request, .. } => {
                    self.requests.remove(&request);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_tenant_that_asks_for_less_than_its_share_is_served_whatever_another_one_sends() {
    for rates in [[0.4, 5.0], [0.3, 50.0], [0.45, 0.9]] {
        let (parts, total) = Run::new(DisciplineName::Deadline, 1000).serve(&rates, 60);
        assert!(parts[0] > 0.98, "{rates:?}: {parts:?}");
        assert!(total > 0.94, "{rates:?}: {total}");
    }
}

#[test]
fn an_overload_that_lasts_has_no_moment_in_which_the_first_to_come_is_served_first() {
    // A batch takes as long whatever it has. What a flood gets into the queue in such a moment fills it for the whole SLO.
    for rates in [[0.25, 3.0], [0.1, 10.0], [0.25, 50.0]] {
        let run = Run::with_times(DisciplineName::Deadline, 1000, 24, 0);
        let (parts, _) = run.serve(&rates, 60);
        assert!(parts[0] > 0.99, "{rates:?}: {parts:?}");
    }
}

#[test]
fn a_flood_costs_a_quiet_tenant_a_batch_that_computes_and_none_that_waits_behind_it() {
    let p99_beside = |others: &[f64]| {
        let run = Run::with_times(DisciplineName::Deadline, 1000, 24, 0);
        let quiet = &mut run.counts_of(&[&[0.1], others].concat(), 60)[0].took;
        quiet.sort_by(f64::total_cmp);
        quiet[quiet.len() * 99 / 100]
    };
    let alone = p99_beside(&[]);
    for flood in [1.0, 2.0, 10.0, 50.0] {
        let beside = p99_beside(&[flood]);
        assert!(
            beside < 1.5 * alone,
            "{beside} ms beside {flood}, {alone} ms alone"
        );
    }
}

/// Returns an engine with a replica that takes eight rows at a time, in 50 ms, and a function that sends it a request of a tenant.
fn engine_of_eight() -> (Engine, impl FnMut(&mut Engine, u64, u64, u64) -> RequestKey) {
    let mut engine = Engine::new(EngineConfig::default());
    let limits = ModelLimits {
        max_batch_rows: 8,
        max_batch_bytes: 1000,
        queue_limit: 1000,
    };
    let model = MODEL;
    engine.handle(at(0), registered(model, limits));
    let (replica, parameters) = (ReplicaKey(0), parameters(MODEL, &[50; 8], 2));
    engine.handle(
        at(0),
        Event::ReplicaReady {
            replica,
            parameters,
        },
    );
    let mut next = 0;
    let send = move |engine: &mut Engine, now: u64, tenant: u64, objective: u64| {
        next += 1;
        let request = Request {
            tenant: TenantKey(tenant),
            ..request(next, MODEL, at(now + objective))
        };
        engine.handle(at(now), Event::RequestArrived(request));
        request.id
    };
    (engine, send)
}

/// Returns the batches that are sent at a time, and ends the one that was sent before.
fn sent_after(
    engine: &mut Engine,
    now: u64,
    before: Option<BatchKey>,
) -> Vec<(BatchKey, Vec<RequestKey>)> {
    if let Some(batch) = before {
        let done = Event::BatchCompleted {
            batch,
            queue_wait: ms(0),
            compute: ms(50),
        };
        engine.handle(at(now), done);
    }
    let actions = std::iter::from_fn(|| engine.poll(at(now)));
    let sent = actions.filter_map(|action| match action {
        Action::Dispatch {
            batch, requests, ..
        } => Some((batch, requests)),
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_quiet_tenant_goes_before_a_flood_that_is_in_time() {
    let (mut engine, mut send) = engine_of_eight();
    for _ in 0..32 {
        send(&mut engine, 0, 1, 1000);
    }
    let first = sent_after(&mut engine, 0, None);
    let quiet = send(&mut engine, 10, 2, 1000);
    sent_after(&mut engine, 10, None);
    // The second batch was sent before.
    assert_eq!(first.len(), 2);
    let mut next = sent_after(&mut engine, 50, Some(first[0].0));
    next.extend(sent_after(&mut engine, 99, None));
    assert!(next[0].1.contains(&quiet), "{first:?} {next:?}");
}

#[test]
fn what_a_tenant_had_while_nobody_waited_does_not_count_against_it() {
    let (mut engine, mut send) = engine_of_eight();
    let mut before = None;
    for turn in 0..100 {
        let now = 50 * turn;
        send(&mut engine, now, 2, 1000);
        before = Some(sent_after(&mut engine, now, before)[0].0);
    }
    for _ in 0..200 {
        send(&mut engine, 5000, 1, 1000);
    }
    let flood = sent_after(&mut engine, 5000, before);
    let quiet = send(&mut engine, 5010, 2, 1000);
    sent_after(&mut engine, 5010, None);
    let mut next = sent_after(&mut engine, 5050, Some(flood[0].0));
    next.extend(sent_after(&mut engine, 5099, None));
    assert!(next[0].1.contains(&quiet), "{flood:?} {next:?}");
}

#[test]
fn tenants_that_ask_for_more_than_their_shares_get_equal_parts_of_the_rest() {
    let (parts, total) = Run::new(DisciplineName::Deadline, 1000).serve(&[1.0, 10.0], 60);
    let (one, other) = (parts[0], 10.0 * parts[1]);
    assert!((0.8..1.25).contains(&(one / other)), "{one} {other}");
    assert!(total > 0.95, "{total}");
    let (parts, total) = Run::new(DisciplineName::Deadline, 1000).serve(&[0.2, 1.0, 10.0], 60);
    let (one, other) = (parts[1], 10.0 * parts[2]);
    assert!(parts[0] > 0.95, "{parts:?}");
    assert!((0.8..1.25).contains(&(one / other)), "{one} {other}");
    assert!(total > 0.95, "{total}");
}

#[test]
fn a_full_queue_is_no_obstacle_to_a_tenant_that_asks_for_less() {
    let (parts, _) = Run::new(DisciplineName::Deadline, 20).serve(&[0.2, 10.0], 60);
    assert!(parts[0] > 0.9, "{parts:?}");
}

#[test]
fn one_tenant_alone_is_served_as_without_tenants() {
    let (_, total) = Run::new(DisciplineName::Deadline, 1000).serve(&[2.0], 60);
    assert!(total > 0.99, "{total}");
}
