//! Replicas that share a device in time, around workers that compute as their profile says.

use std::{cmp::Reverse, collections::BinaryHeap};

use proptest::prelude::*;

use super::*;

/// Workers that compute the batches that they have, whatever else their device does, at the far end of a network.
struct Workers {
    engine: Engine,
    now: Time,
    base: Duration,
    per_row: Duration,
    /// The compute times of one row, two rows and so on of each replica.
    times: Vec<Vec<u64>>,
    free: Vec<Time>,
    /// The batches that are away: when they come back, and what is then told to the engine.
    back: BinaryHeap<Reverse<(Time, BatchKey, Duration, Duration)>>,
    /// The computations of all replicas, from their start to their end, with the replica and the number of requests.
    computed: Vec<(Time, Time, u32, usize)>,
    next_request: u64,
}

const LIMITS: ModelLimits = ModelLimits {
    max_batch_rows: 8,
    max_batch_bytes: 1000,
    queue_limit: 1000,
};

impl Workers {
    /// Creates a device whose replicas, each of its own model, take these times.
    fn new(times: &[&[u64]], base: Duration, per_row: Duration) -> Self {
        let mut workers = Self {
            engine: Engine::new(EngineConfig::default()),
            now: Time::ZERO,
            base,
            per_row,
            times: times.iter().map(|times| times.to_vec()).collect(),
            free: vec![Time::ZERO; times.len()],
            back: BinaryHeap::new(),
            computed: Vec::new(),
            next_request: 0,
        };
        for (key, times) in (0..).zip(times) {
            let model = ModelKey(key);
            workers.handle(registered(model, LIMITS));
            workers.handle(Event::ReplicaReady {
                replica: ReplicaKey(key),
                parameters: ReplicaParameters {
                    sharing: DeviceSharing::Turns,
                    shares_memory: false,
                    ..parameters(model, times, 2)
                },
            });
        }
        workers
    }

    fn handle(&mut self, event: Event) {
        self.engine.handle(self.now, event);
        self.drain();
    }

    fn share(&mut self, replica: u32, time_shared: bool) {
        self.handle(Event::TimeSharingChanged {
            replica: ReplicaKey(replica),
            time_shared,
        });
    }

    fn arrive(&mut self, model: u32, allowed: Duration) {
        let request = request(self.next_request, ModelKey(model), self.now + allowed);
        self.next_request += 1;
        self.handle(Event::RequestArrived(request));
    }

    fn drain(&mut self) {
        while let Some(action) = self.engine.poll(self.now) {
            if let Action::Dispatch {
                batch,
                replica,
                requests,
            } = action
            {
                let index = replica.0 as usize;
                let rows = requests.len();
                let there = self.now + self.base + self.per_row * u32::try_from(rows).unwrap();
                let start = there.max(self.free[index]);
                let compute = ms(self.times[index][rows - 1]);
                self.free[index] = start + compute;
                self.computed
                    .push((start, start + compute, replica.0, rows));
                let wait = start.saturating_since(there);
                let back = Reverse((start + compute + self.base, batch, wait, compute));
                self.back.push(back);
            }
        }
    }

    /// Lets time pass.
    fn run(&mut self, until: Time) {
        loop {
            let wake = self.engine.poll_timeout();
            let back = self.back.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = wake.into_iter().chain(back).min().filter(|at| *at <= until) else {
                break;
            };
            self.now = next;
            if back == Some(next) {
                let Reverse((_, batch, queue_wait, compute)) = self.back.pop().unwrap();
                self.engine.handle(
                    next,
                    Event::BatchCompleted {
                        batch,
                        queue_wait,
                        compute,
                    },
                );
            }
            self.drain();
        }
        self.now = until;
        self.drain();
    }

    /// Returns the time for which batches of different replicas computed at the same time, of those from a time on.
    fn overlap(&self, from: Time) -> Duration {
        let mut computed = self.computed.clone();
        computed.retain(|batch| batch.0 >= from);
        computed.sort_unstable();
        let mut overlap = Duration::ZERO;
        for (i, (_, end, replica, _)) in computed.iter().enumerate() {
            let others = computed[i + 1..].iter().take_while(|next| next.0 < *end);
            let others = others.filter(|next| next.2 != *replica);
            overlap += others
                .map(|next| next.1.min(*end).saturating_since(next.0))
                .sum::<Duration>();
        }
        overlap
    }

    fn replicas(&self) -> Vec<u32> {
        self.computed.iter().map(|computed| computed.2).collect()
    }
}

const FLAT: &[u64] = &[10, 10, 10, 10];

#[test]
fn replicas_take_turns_without_waiting_for_those_without_work() {
    let mut workers = Workers::new(&[FLAT, FLAT, FLAT], Duration::ZERO, Duration::ZERO);
    for model in [0, 0, 0, 0, 0, 2, 2, 2, 2, 2] {
        workers.arrive(model, ms(500));
    }
    workers.run(at(500));
    // The first request went at once, as a batch of its own. The second replica never has work.
    assert_eq!(workers.replicas(), [0, 2, 0, 2]);
    let rows: Vec<usize> = workers.computed.iter().map(|batch| batch.3).collect();
    assert_eq!(rows, [1, 4, 4, 1], "a batch is formed when its turn comes");
    assert_eq!(workers.overlap(at(0)), Duration::ZERO);
}

#[test]
fn a_replica_that_is_alone_with_its_work_has_every_turn() {
    let mut workers = Workers::new(&[FLAT, FLAT], Duration::ZERO, Duration::ZERO);
    for _ in 0..9 {
        workers.arrive(0, ms(500));
    }
    workers.run(at(2000));
    assert_eq!(workers.replicas(), [0, 0, 0]);
    workers.arrive(1, ms(100));
    assert_eq!(workers.replicas(), [0, 0, 0, 1], "the device is idle");
}

#[test]
fn replicas_of_a_device_begin_and_end_to_take_turns_while_they_serve() {
    let mut workers = Workers::new(&[FLAT, FLAT], Duration::ZERO, Duration::ZERO);
    workers.share(1, false);
    workers.arrive(0, ms(500));
    workers.arrive(1, ms(500));
    assert_eq!(workers.replicas(), [0, 1], "each computes beside the other");
    workers.share(1, true);
    workers.arrive(0, ms(500));
    assert_eq!(workers.replicas(), [0, 1], "both have a batch away");
    workers.run(at(10));
    assert_eq!(workers.replicas(), [0, 1, 0]);
    workers.arrive(1, ms(500));
    assert_eq!(workers.replicas(), [0, 1, 0], "it is not its turn");
    workers.share(0, false);
    assert_eq!(workers.replicas(), [0, 1, 0, 1]);
}

#[test]
fn a_lost_replica_and_a_drained_one_leave_the_turn_to_the_others() {
    for lost in [true, false] {
        let mut workers = Workers::new(&[FLAT, FLAT, FLAT], Duration::ZERO, Duration::ZERO);
        for model in [0, 1, 2] {
            workers.arrive(model, ms(500));
        }
        assert_eq!(workers.replicas(), [0]);
        let replica = ReplicaKey(1);
        let event = if lost {
            Event::ReplicaLost { replica }
        } else {
            Event::ReplicaDraining { replica }
        };
        workers.handle(event);
        workers.run(at(15));
        assert_eq!(workers.replicas(), [0, 2]);
        let replica = ReplicaKey(2);
        workers.handle(Event::ReplicaLost { replica });
        workers.arrive(0, ms(500));
        assert_eq!(workers.replicas(), [0, 2, 0], "nobody is left to wait for");
    }
}

#[test]
fn a_late_batch_keeps_the_device_and_nothing_is_sent_behind_it() {
    let mut workers = Workers::new(&[FLAT, FLAT], Duration::ZERO, Duration::ZERO);
    workers.times[0] = vec![300; 4];
    workers.arrive(0, ms(500));
    workers.arrive(1, ms(500));
    workers.run(at(299));
    assert_eq!(workers.replicas(), [0]);
    workers.run(at(300));
    assert_eq!(workers.replicas(), [0, 1]);
}

#[test]
fn batches_travel_while_others_compute() {
    // Each batch travels for twice as long as it computes. Two replicas that took their turns only once the former batch is back
    // would use the device for less than a third of the time.
    let mut workers = Workers::new(&[&[5, 5, 5, 5, 5], &[5, 5, 5, 5, 5]], ms(4), ms(2));
    for arrival in 0..1000 {
        workers.run(at(2 * arrival));
        workers.arrive((arrival % 2) as u32, ms(100));
    }
    workers.run(at(2500));
    let busy: Duration = workers
        .computed
        .iter()
        .map(|b| b.1.saturating_since(b.0))
        .sum();
    assert!(busy > ms(1000), "{busy:?} of 2 s");
    assert!(
        workers.overlap(at(0)) < busy / 50,
        "{:?}",
        workers.overlap(at(0))
    );
    let books = workers.engine.books();
    assert!(books.answered > 990, "{books:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the times, the network and the arrivals are: batches of a device hardly compute at the same time, and none of its
    /// replicas waits for ever.
    #[test]
    fn turns_are_kept_and_everybody_gets_one(
        times in proptest::collection::vec((1_u64..20, 0_u64..6), 2..5),
        base in 0_u64..10,
        per_row in 0_u64..4,
        arrivals in proptest::collection::vec((0_u32..5, 0_u64..8), 600..800),
    ) {
        let times: Vec<Vec<u64>> = times
            .iter()
            .map(|(first, more)| (0..8).map(|rows| first + more * rows).collect())
            .collect();
        let slices: Vec<&[u64]> = times.iter().map(Vec::as_slice).collect();
        let mut workers = Workers::new(&slices, ms(base), ms(per_row));
        let models = u32::try_from(times.len()).unwrap();
        let (mut now, half) = (Time::ZERO, arrivals.len() / 2);
        let mut learnt = Time::ZERO;
        for (i, (model, gap)) in arrivals.into_iter().enumerate() {
            now += ms(gap);
            workers.run(now);
            workers.arrive(model % models, ms(10_000));
            if i == half {
                learnt = now;
            }
        }
        workers.run(now + ms(20_000));
        let later = workers.computed.iter().filter(|batch| batch.0 >= learnt);
        let busy: Duration = later.map(|b| b.1.saturating_since(b.0)).sum();
        // The network's times are learnt from the first half.
        let overlap = workers.overlap(learnt);
        prop_assert!(overlap <= busy / 10 + ms(20), "{overlap:?} of {busy:?}");
        let books = workers.engine.books();
        prop_assert_eq!((books.queued, books.in_flight), (0, 0), "{:?}", books);
        prop_assert_eq!(books.answered, books.accepted, "{:?}", books);
    }
}
