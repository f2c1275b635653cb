//! Random histories of one engine, and of several that exchange their models: both decide the same.

use std::collections::{BTreeMap, BTreeSet};

use super::{properties::Random, *};
use crate::EnginePart;

const MODELS: u32 = 6;
const DEVICES: u32 = 6;
const ENGINES: usize = 3;

/// An action as both must tell it. Batches have other numbers in other engines, and are told by their requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Dispatch(ReplicaKey, Vec<RequestKey>),
    Finish(RequestKey, String),
    Ejected(ReplicaKey, u32),
    Restored(ReplicaKey),
    Drained(ReplicaKey),
    Paused(TenantKey),
    Load(ReplicaKey),
    Unload(ReplicaKey),
}

/// One engine, and several that share its models.
struct Twins {
    now: Time,
    whole: Engine,
    parts: Vec<Engine>,
    /// The engine of every model, among the parts.
    homes: BTreeMap<ModelKey, usize>,
    replicas: BTreeMap<ReplicaKey, (ModelKey, DeviceKey)>,
    /// The batches that are away, with their numbers in the whole and in a part.
    batches: Vec<(BatchKey, BatchKey, ReplicaKey)>,
    fallbacks: BTreeMap<ModelKey, ModelKey>,
    next: u32,
    moves: usize,
}

/// The batches that an engine sends, by what is in them.
type Sent = BTreeMap<(ReplicaKey, Vec<RequestKey>), BatchKey>;

/// Returns what an engine tells at this time, with the numbers of the batches.
fn drain(engine: &mut Engine, now: Time) -> (Vec<Told>, Sent) {
    let (mut told, mut batches) = (Vec::new(), BTreeMap::new());
    while let Some(action) = engine.poll(now) {
        told.push(match action {
            Action::Dispatch {
                batch,
                replica,
                requests,
            } => {
                batches.insert((replica, requests.clone()), batch);
                Told::Dispatch(replica, requests)
            }
            Action::Finish { request, outcome } => Told::Finish(request, format!("{outcome:?}")),
            Action::Load { replica } => Told::Load(replica),
            Action::Unload { replica, .. } => Told::Unload(replica),
            Action::ReplicaEjected { replica, failures } => Told::Ejected(replica, failures),
            Action::ReplicaRestored { replica } => Told::Restored(replica),
            Action::ReplicaDrained { replica } => Told::Drained(replica),
            Action::TenantPaused { tenant, .. } => Told::Paused(tenant),
        });
    }
    (told, batches)
}

impl Twins {
    fn new(discipline: DisciplineName) -> Self {
        let config = |engine: usize| EngineConfig {
            discipline,
            first_batch: BatchKey((engine as u64) << 32),
            ..EngineConfig::default()
        };
        Self {
            now: Time::ZERO,
            whole: Engine::new(config(ENGINES)),
            parts: (0..ENGINES).map(config).map(Engine::new).collect(),
            homes: (0..MODELS)
                .map(|model| (ModelKey(model), model as usize % ENGINES))
                .collect(),
            replicas: BTreeMap::new(),
            batches: Vec::new(),
            fallbacks: BTreeMap::new(),
            next: 0,
            moves: 0,
        }
    }

    fn home(&self, model: ModelKey) -> usize {
        self.homes[&model]
    }

    /// Has both handle an event of a model, and compares what they tell.
    fn handle(&mut self, model: ModelKey, event: Event, in_part: Event) {
        self.whole.handle(self.now, event);
        let home = self.home(model);
        self.parts[home].handle(self.now, in_part);
        self.compare();
    }

    /// Compares what both tell now. The order among models that are not coupled is not that of a single engine.
    fn compare(&mut self) {
        let (mut told, batches) = drain(&mut self.whole, self.now);
        let (mut told_by_parts, mut batches_of_parts) = (Vec::new(), BTreeMap::new());
        for part in &mut self.parts {
            let (told, batches) = drain(part, self.now);
            told_by_parts.extend(told);
            batches_of_parts.extend(batches);
        }
        told.sort();
        told_by_parts.sort();
        assert_eq!(told, told_by_parts, "at {}", self.now);
        for (batch, key) in batches {
            self.batches.push((key, batches_of_parts[&batch], batch.0));
        }
        for told in told {
            if let Told::Drained(replica) = told {
                self.replicas.remove(&replica);
            }
        }
        let timeouts = self.parts.iter().filter_map(Engine::poll_timeout);
        assert_eq!(self.whole.poll_timeout(), timeouts.min());
        let mut sum = Books::default();
        for books in self.parts.iter().map(Engine::books) {
            sum.refused += books.refused;
            sum.accepted += books.accepted;
            sum.answered += books.answered;
            sum.failed += books.failed;
            sum.expired += books.expired;
            sum.lost += books.lost;
            sum.cancelled += books.cancelled;
            sum.queued += books.queued;
            sum.in_flight += books.in_flight;
        }
        assert_eq!(sum, self.whole.books());
    }

    /// Moves a model, with those that it is coupled with, to another engine.
    fn move_to(&mut self, model: ModelKey, to: usize) {
        let from = self.home(model);
        if from == to {
            return;
        }
        let coupled = self.parts[from].coupled(model);
        let part: EnginePart = self.parts[from].split_off(&coupled);
        self.parts[to].absorb(self.now, part);
        for model in coupled {
            self.homes.insert(model, to);
        }
        self.moves += 1;
        self.compare();
    }

    /// Brings all models with replicas on a device to the engine of a model.
    fn couple(&mut self, model: ModelKey, device: DeviceKey) {
        let home = self.home(model);
        let others = self.replicas.values().filter(|replica| replica.1 == device);
        let others: BTreeSet<ModelKey> = others.map(|replica| replica.0).collect();
        for other in others {
            self.move_to(other, home);
        }
    }

    fn pass(&mut self, until: Time) {
        while let Some(wake) = self.whole.poll_timeout().filter(|wake| *wake <= until) {
            self.now = wake;
            self.compare();
        }
        self.now = until;
        self.compare();
    }

    fn nth_replica(&self, index: u32) -> Option<(ReplicaKey, ModelKey)> {
        let index = (index as usize).checked_rem(self.replicas.len())?;
        let (key, (model, _)) = self.replicas.iter().nth(index)?;
        Some((*key, *model))
    }

    fn step(&mut self, random: &mut Random) {
        let model = ModelKey(random.small(MODELS));
        match random.below(34) {
            0..14 => self.arrive(model, random),
            14..20 => self.end_batch(random),
            20..24 => self.pass(self.now + ms(random.below(40))),
            24..26 => self.add_replica(model, random),
            26 => {
                let later = ModelKey(model.0 + 1 + random.small(2));
                if self.homes.contains_key(&later) {
                    let home = self.home(model);
                    self.move_to(later, home);
                    self.fallbacks.insert(model, later);
                    let event = Event::FallbackChanged {
                        model,
                        fallback: Some(later),
                    };
                    self.handle(model, event.clone(), event);
                }
            }
            27 => {
                self.fallbacks.remove(&model);
                let event = Event::FallbackChanged {
                    model,
                    fallback: None,
                };
                self.handle(model, event.clone(), event);
            }
            28 => {
                if let Some((replica, model)) = self.nth_replica(random.small(1000)) {
                    let event = Event::ReplicaDraining { replica };
                    self.handle(model, event.clone(), event);
                }
            }
            29 => {
                if let Some((replica, model)) = self.nth_replica(random.small(1000)) {
                    self.replicas.remove(&replica);
                    self.batches.retain(|batch| batch.2 != replica);
                    let event = Event::ReplicaLost { replica };
                    self.handle(model, event.clone(), event);
                }
            }
            30 => {
                let names = DisciplineName::LIVE;
                let name = names[random.small(u32::try_from(names.len()).unwrap()) as usize];
                self.whole.set_discipline(self.now, name);
                for part in &mut self.parts {
                    part.set_discipline(self.now, name);
                }
                self.compare();
            }
            31 => {
                // A request may wait for a fallback that its model no longer has, in another engine.
                let request = RequestKey(u64::from(self.next.saturating_sub(random.small(10))));
                let event = Event::RequestCancelled { request };
                self.whole.handle(self.now, event.clone());
                for part in &mut self.parts {
                    part.handle(self.now, event.clone());
                }
                self.compare();
            }
            _ => self.move_to(model, random.small(ENGINES as u32) as usize),
        }
    }

    fn arrive(&mut self, model: ModelKey, random: &mut Random) {
        self.next += 1;
        let rows = 1 + random.small(3);
        let (class, priority) = (ShapeClass(random.below(2)), random.below(3));
        let (tenant, may_fall_back) = (TenantKey(random.below(2)), random.below(2) == 0);
        let deadline = self.now + ms(random.below(200));
        let request = Request {
            id: RequestKey(u64::from(self.next)),
            model,
            tenant,
            rows,
            bytes: u64::from(rows),
            class,
            priority,
            may_fall_back,
            deadline,
            load_by: deadline,
        };
        let event = Event::RequestArrived(request);
        self.handle(model, event.clone(), event);
    }

    fn add_replica(&mut self, model: ModelKey, random: &mut Random) {
        if self.replicas.len() >= 2 * DEVICES as usize {
            return;
        }
        self.next += 1;
        let (replica, device) = (ReplicaKey(self.next), DeviceKey(random.small(DEVICES)));
        self.couple(model, device);
        let times: Vec<u64> = (1..=1 + random.below(4)).map(|rows| 3 + 4 * rows).collect();
        let parameters = ReplicaParameters {
            device,
            sharing: match random.below(3) {
                0 => DeviceSharing::Concurrent,
                1 => DeviceSharing::Turns,
                _ => DeviceSharing::Pool(PoolMember {
                    weights: 1,
                    memory: u64::MAX,
                    load: Duration::ZERO,
                    resident: true,
                    on_disk: false,
                    utilization: [0.5].into(),
                }),
            },
            shares_memory: false,
            ..parameters(model, &times, 1 + random.small(2))
        };
        self.replicas.insert(replica, (model, device));
        let event = Event::ReplicaReady {
            replica,
            parameters,
        };
        self.handle(model, event.clone(), event);
    }

    fn end_batch(&mut self, random: &mut Random) {
        if self.batches.is_empty() {
            return;
        }
        let index = random.small(u32::try_from(self.batches.len()).unwrap()) as usize;
        let (batch, in_part, replica) = self.batches.remove(index);
        let Some(&(model, _)) = self.replicas.get(&replica) else {
            return;
        };
        let failed = random.below(6) == 0;
        let event = |batch| {
            if failed {
                Event::BatchFailed {
                    batch,
                    error: BatchError::ModelFailed,
                }
            } else {
                Event::BatchCompleted {
                    batch,
                    queue_wait: Duration::ZERO,
                    compute: ms(8),
                }
            }
        };
        self.handle(model, event(batch), event(in_part));
    }
}

#[test]
fn engines_that_exchange_their_models_decide_as_one() {
    let mut moves = 0;
    for seed in 0..3_000 {
        let mut random = Random(seed);
        let names = DisciplineName::LIVE;
        let name = names[usize::try_from(seed).unwrap() % names.len()];
        let mut twins = Twins::new(name);
        for model in (0..MODELS).map(ModelKey) {
            let limits = ModelLimits {
                max_batch_rows: 4,
                max_batch_bytes: 100,
                queue_limit: 6,
            };
            let event = registered(model, limits);
            twins.handle(model, event.clone(), event);
            twins.add_replica(model, &mut random);
        }
        for _ in 0..200 {
            twins.step(&mut random);
        }
        moves += twins.moves;
    }
    assert!(moves > 10_000, "{moves} moves");
}

#[test]
fn models_are_coupled_by_devices_and_fallbacks_through_others() {
    let mut engine = Engine::new(EngineConfig::default());
    let limits = ModelLimits {
        max_batch_rows: 4,
        max_batch_bytes: 100,
        queue_limit: 6,
    };
    for model in (0..6).map(ModelKey) {
        engine.handle(Time::ZERO, registered(model, limits));
    }
    // 0 and 1 share a device, 1 and 2 another; 3 is the fallback of 2; 4 and 5 are alone.
    for (replica, (model, device)) in [(0, 0), (1, 0), (1, 1), (2, 1), (4, 2), (3, 3)]
        .into_iter()
        .enumerate()
    {
        let parameters = ReplicaParameters {
            device: DeviceKey(device),
            ..parameters(ModelKey(model), &[5], 1)
        };
        let replica = ReplicaKey(u32::try_from(replica).unwrap());
        engine.handle(
            Time::ZERO,
            Event::ReplicaReady {
                replica,
                parameters,
            },
        );
    }
    let (model, fallback) = (ModelKey(2), Some(ModelKey(3)));
    engine.handle(Time::ZERO, Event::FallbackChanged { model, fallback });
    let coupled = |model| {
        engine
            .coupled(ModelKey(model))
            .into_iter()
            .map(|key| key.0)
            .collect::<Vec<_>>()
    };
    for model in 0..4 {
        assert_eq!(coupled(model), [0, 1, 2, 3]);
    }
    assert_eq!(coupled(4), [4]);
    assert_eq!(coupled(5), [5]);
}
