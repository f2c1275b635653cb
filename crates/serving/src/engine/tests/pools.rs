//! Pools of devices, around workers that copy weights and compute one batch after the other, as their profile says.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use proptest::prelude::*;

use super::*;
use crate::Refusal;

pub(super) const LIMITS: ModelLimits = ModelLimits {
    max_batch_rows: 8,
    max_batch_bytes: 1 << 20,
    queue_limit: 1000,
};

/// The bytes of each model's weights.
const WEIGHTS: u64 = 10;

/// An end that is told to the engine later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Back {
    Weights(ReplicaKey),
    Batch(BatchKey, Duration, Duration),
}

/// Devices that have all models, each with room for some.
pub(super) struct Devices {
    engine: Engine,
    now: Time,
    models: u32,
    /// The compute times of one row, two rows and so on of each model.
    times: Vec<Vec<u64>>,
    load: Duration,
    /// The times at which each device has computed what it has.
    free: Vec<Time>,
    copied: Vec<Time>,
    back: BinaryHeap<Reverse<(Time, Back)>>,
    /// The batches, with the model and the number of requests, by their ends.
    pub(super) computed: Vec<(Time, u32, usize)>,
    pub(super) loads: Vec<u32>,
    /// The times to load from files what is in files only, by replica.
    on_disk: BTreeMap<ReplicaKey, Duration>,
    /// The times at which each device has loaded from files what it was told to.
    read: Vec<Time>,
    pub(super) refused: Vec<(RequestKey, Refusal)>,
    /// The number of copies that the workers refuse from now on.
    refusals: u32,
    pub(super) evicted: Vec<u32>,
    /// The requests that were not answered.
    pub(super) expired: Vec<RequestKey>,
    next_request: u64,
}

impl Devices {
    /// Creates devices with room for the weights of so many models. Those of the first ones are there.
    pub(super) fn new(devices: u32, room: u64, times: &[&[u64]], load: Duration) -> Self {
        let models = u32::try_from(times.len()).unwrap();
        let mut new = Self {
            engine: Engine::new(EngineConfig::default()),
            now: Time::ZERO,
            models,
            times: times.iter().map(|times| times.to_vec()).collect(),
            load,
            free: vec![Time::ZERO; devices as usize],
            copied: vec![Time::ZERO; devices as usize],
            back: BinaryHeap::new(),
            computed: Vec::new(),
            loads: Vec::new(),
            on_disk: BTreeMap::new(),
            read: vec![Time::ZERO; devices as usize],
            refused: Vec::new(),
            refusals: 0,
            evicted: Vec::new(),
            expired: Vec::new(),
            next_request: 0,
        };
        for (number, times) in (0..).zip(times) {
            let (model, limits) = (ModelKey(number), LIMITS);
            new.handle(registered(model, limits));
            for device in 0..devices {
                let member = PoolMember {
                    weights: WEIGHTS,
                    memory: room * WEIGHTS,
                    load,
                    resident: u64::from(number) < room,
                    on_disk: false,
                    utilization: [].into(),
                };
                let parameters = ReplicaParameters {
                    device: DeviceKey(device),
                    sharing: DeviceSharing::Pool(member),
                    ..parameters(model, times, 2)
                };
                let replica = ReplicaKey(device * models + number);
                new.handle(Event::ReplicaReady {
                    replica,
                    parameters,
                });
            }
        }
        new
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    pub(super) fn handle(&mut self, event: Event) {
        self.engine.handle(self.now, event);
        self.act();
    }

    pub(super) fn arrive(&mut self, model: u32, allowed: Duration) {
        let request = request(self.next_request, ModelKey(model), self.now + allowed);
        self.next_request += 1;
        self.handle(Event::RequestArrived(request));
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll(self.now) {
            match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => {
                    let (device, model) = (replica.0 / self.models, replica.0 % self.models);
                    let free = &mut self.free[device as usize];
                    let wait = free.saturating_since(self.now);
                    let compute = ms(self.times[model as usize][requests.len() - 1]);
                    *free = self.now + wait + compute;
                    self.computed.push((*free, model, requests.len()));
                    let back = Back::Batch(batch, wait, compute);
                    self.back.push(Reverse((*free, back)));
                }
                Action::Load { replica } => {
                    let device = (replica.0 / self.models) as usize;
                    let (copied, load) = match self.on_disk.get(&replica) {
                        Some(load) => (&mut self.read[device], *load),
                        None => (&mut self.copied[device], self.load),
                    };
                    *copied = (*copied).max(self.now) + load;
                    self.loads.push(replica.0 % self.models);
                    let back = (*copied, Back::Weights(replica));
                    self.back.push(Reverse(back));
                }
                Action::Unload { replica, .. } => self.evicted.push(replica.0 % self.models),
                Action::Finish {
                    request,
                    outcome: RequestOutcome::Refused(refusal),
                } if refusal != Refusal::CannotMeetDeadline => {
                    self.refused.push((request, refusal));
                }
                Action::Finish { request, outcome } => {
                    let refused = RequestOutcome::Refused(Refusal::CannotMeetDeadline);
                    assert!(
                        [RequestOutcome::Expired, refused].contains(&outcome),
                        "{outcome:?}"
                    );
                    self.expired.push(request);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Has the weights of a replica be in a file only, from which they are loaded in this time, or in memory.
    pub(super) fn keep(&mut self, replica: ReplicaKey, in_file: Option<Duration>) {
        let was_on_disk = self.on_disk.remove(&replica).is_some();
        self.on_disk.extend(in_file.map(|load| (replica, load)));
        if was_on_disk || in_file.is_some() {
            self.handle(Event::WeightsStored {
                replica,
                on_disk: in_file.is_some(),
                load: in_file.unwrap_or(self.load),
            });
        }
    }

    /// Returns the models whose weights are not on the device, nor on their way.
    pub(super) fn away(&self) -> BTreeSet<u32> {
        let pool = self.engine.pools.get(DeviceKey(0)).unwrap();
        let is_away = |model: &u32| pool.is_away(ReplicaKey(*model));
        (0..self.models).filter(is_away).collect()
    }

    /// Has a request arrive that waits longer for a load from a file.
    pub(super) fn arrive_patient(&mut self, model: u32, allowed: Duration, cold_wait: Duration) {
        let request = Request {
            load_by: self.now + cold_wait,
            ..request(self.next_request, ModelKey(model), self.now + allowed)
        };
        self.next_request += 1;
        self.handle(Event::RequestArrived(request));
    }

    /// Lets time pass.
    pub(super) fn pass_until(&mut self, until: Time) {
        loop {
            let back = self.back.peek().map(|Reverse((at, _))| *at);
            let next = { back.into_iter() }.chain(self.engine.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= until) else {
                break;
            };
            self.now = next;
            if back == Some(next) {
                let Some(Reverse((_, back))) = self.back.pop() else {
                    unreachable!("just seen");
                };
                let event = match back {
                    Back::Weights(replica) if self.refusals > 0 => {
                        self.refusals -= 1;
                        Event::WeightsUnloaded { replica }
                    }
                    Back::Weights(replica) => {
                        self.keep(replica, None);
                        Event::WeightsLoaded { replica }
                    }
                    Back::Batch(batch, queue_wait, compute) => Event::BatchCompleted {
                        batch,
                        queue_wait,
                        compute,
                    },
                };
                self.handle(event);
            } else {
                self.act();
            }
        }
        self.now = until;
    }

    /// Returns the models of the batches, in the order of their ends.
    pub(super) fn models_computed(&mut self) -> Vec<u32> {
        self.computed.sort_unstable();
        self.computed.iter().map(|(_, model, _)| *model).collect()
    }
}

#[test]
fn a_device_computes_one_batch_at_a_time_and_the_next_one_grows_meanwhile() {
    let times: &[u64] = &[10, 11, 12, 13];
    let mut devices = Devices::new(1, 2, &[times, times], ms(1));
    for model in [0, 1, 1, 1] {
        devices.arrive(model, ms(100));
    }
    devices.pass_until(at(5));
    assert_eq!(devices.computed.len(), 1, "the device is in use");
    devices.arrive(1, ms(100));
    devices.pass_until(at(60));
    devices.computed.sort_unstable();
    assert_eq!(devices.computed, [(at(10), 0, 1), (at(23), 1, 4)]);
}

#[test]
fn who_would_be_late_behind_another_goes_first() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(1, 3, &[times, times, times], ms(1));
    devices.arrive(0, ms(200));
    devices.arrive(1, ms(200));
    devices.arrive(2, ms(25));
    devices.pass_until(at(100));
    assert_eq!(devices.models_computed(), [0, 2, 1]);
    assert_eq!(devices.expired, []);
}

#[test]
fn where_not_all_can_be_in_time_more_requests_per_second_go_first() {
    let (slow, fast): (&[u64], &[u64]) = (&[30], &[10]);
    let mut devices = Devices::new(1, 3, &[fast, slow, fast], ms(1));
    devices.arrive(0, ms(100));
    // Only one of these is in time.
    devices.arrive(1, ms(45));
    devices.arrive(2, ms(35));
    devices.pass_until(at(100));
    assert_eq!(devices.models_computed(), [0, 2]);
    assert_eq!(devices.expired, [RequestKey(1)]);
}

#[test]
fn any_idle_device_takes_from_the_one_queue() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(3, 1, &[times], ms(1));
    for _ in 0..6 {
        devices.arrive(0, ms(100));
    }
    devices.pass_until(at(100));
    let ends: Vec<Time> = devices.computed.iter().map(|(end, ..)| *end).collect();
    assert_eq!(ends, [10, 10, 10, 20, 20, 20].map(at));
}

#[test]
fn a_request_of_a_model_that_no_device_has_waits_for_its_weights() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(1, 2, &[times, times, times], ms(8));
    devices.pass_until(at(5));
    devices.arrive(0, ms(100));
    devices.pass_until(at(20));
    // The first model was used, so the second one makes room.
    devices.arrive(2, ms(30));
    devices.pass_until(at(100));
    assert_eq!(
        (&devices.loads[..], &devices.evicted[..]),
        (&[2][..], &[1][..])
    );
    assert_eq!(devices.computed.last(), Some(&(at(38), 2, 1)));
    assert_eq!(devices.expired, []);
}

#[test]
fn weights_are_copied_in_the_order_of_deadlines() {
    let times: &[u64] = &[2];
    let mut devices = Devices::new(1, 4, &[times; 8], ms(10));
    for (model, allowed) in [(4, 400), (5, 300), (6, 200), (7, 100)] {
        devices.arrive(model, ms(allowed));
    }
    devices.pass_until(at(200));
    // Two copies were under way when the later ones came.
    assert_eq!(devices.loads, [4, 5, 7, 6]);
    assert_eq!(devices.computed.len(), 4);
}

#[test]
fn models_that_evict_each_other_all_get_something_done() {
    let times: &[u64] = &[2, 3, 4, 5, 6, 7, 8, 9];
    let mut devices = Devices::new(1, 1, &[times; 3], ms(10));
    let mut next = Time::ZERO;
    while devices.now < at(2000) {
        for model in 0..3 {
            devices.arrive(model, ms(120));
        }
        next += ms(5);
        devices.pass_until(next);
    }
    devices.pass_until(at(3000));
    let answered = |model| {
        let of_model = devices.computed.iter().filter(|batch| batch.1 == model);
        of_model.map(|batch| batch.2).sum::<usize>()
    };
    for model in 0..3 {
        // Of 400 requests; a batch of eight for each copy of 10 ms would be 380.
        assert!(answered(model) > 150, "{} of {model}", answered(model));
    }
    let batches = devices.computed.len();
    assert!(
        devices.loads.len() <= batches + 1,
        "{} copies for {batches} batches",
        devices.loads.len()
    );
}

#[test]
fn a_copy_that_was_refused_is_tried_again_although_the_device_decides_meanwhile() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(1, 2, &[times; 4], ms(4));
    devices.refusals = 3;
    devices.arrive(0, ms(1000));
    devices.arrive(2, ms(1000));
    devices.arrive(3, ms(1000));
    // The first two copies are refused before the batch ends, after which nothing else happens at the device.
    devices.pass_until(at(200));
    assert_eq!(devices.refusals, 0);
    assert_eq!(devices.computed.len(), 3, "{:?}", devices.loads);
}

#[test]
fn a_model_that_is_larger_than_the_device_is_never_copied() {
    let times: &[u64] = &[2];
    let mut devices = Devices::new(1, 0, &[times], ms(1));
    devices.arrive(0, ms(50));
    devices.pass_until(at(100));
    assert_eq!((devices.loads.len(), devices.expired.len()), (0, 1));
}

#[test]
fn weights_whose_request_was_cancelled_make_room_for_others() {
    let times: &[u64] = &[2];
    let mut devices = Devices::new(1, 1, &[times; 3], ms(10));
    devices.arrive(1, ms(200));
    devices.pass_until(at(5));
    let request = RequestKey(0);
    devices.handle(Event::RequestCancelled { request });
    devices.pass_until(at(20));
    devices.arrive(2, ms(100));
    devices.pass_until(at(100));
    assert_eq!(devices.models_computed(), [2]);
    assert_eq!(devices.loads, [1, 2]);
}

#[test]
fn a_device_whose_batch_is_late_leaves_its_models_to_others() {
    let times: &[u64] = &[10, 12];
    let mut devices = Devices::new(2, 2, &[times; 2], ms(1));
    // The first device hangs from its first batch on.
    devices.arrive(0, ms(500));
    devices.back.clear();
    let mut next = at(1);
    for _ in 0..20 {
        devices.arrive(0, ms(100));
        devices.arrive(1, ms(100));
        next += ms(15);
        devices.pass_until(next);
    }
    devices.pass_until(at(600));
    let answered: usize = devices
        .computed
        .iter()
        .map(|(_, _, requests)| requests)
        .sum();
    // One at the device that hangs, and one that was sent there before it was late.
    assert!(answered >= 39, "{answered} of 41, {:?}", devices.expired);
}

#[test]
fn a_replica_that_was_ejected_gets_what_waits_once_it_is_probed() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(1, 2, &[times; 2], ms(1));
    devices.arrive(0, ms(5000));
    let Some(Reverse((_, Back::Batch(batch, ..)))) = devices.back.pop() else {
        panic!("the device is idle");
    };
    let error = BatchError::TimedOut;
    devices
        .engine
        .handle(devices.now, Event::BatchFailed { batch, error });
    while let Some(action) = devices.engine.poll(devices.now) {
        assert!(
            matches!(action, Action::ReplicaEjected { .. }),
            "{action:?}"
        );
    }
    devices.free[0] = devices.now;
    while let Some(wake) = { devices.engine.poll_timeout() }.filter(|_| devices.back.is_empty()) {
        devices.now = wake;
        devices.act();
    }
    assert_eq!(devices.back.len(), 1, "the request that waits is the probe");
}

#[test]
fn a_load_from_a_file_keeps_no_copy_from_memory_waiting() {
    let times: &[u64] = &[2];
    let mut devices = Devices::new(1, 3, &[times; 5], ms(1));
    devices.keep(ReplicaKey(3), Some(ms(500)));
    devices.arrive(3, ms(900));
    devices.pass_until(at(10));
    devices.arrive(4, ms(20));
    devices.pass_until(at(100));
    assert_eq!(devices.computed, [(at(13), 4, 1)]);
    devices.pass_until(at(900));
    assert_eq!(devices.computed.last(), Some(&(at(502), 3, 1)));
    assert_eq!((devices.loads, devices.expired), (vec![3, 4], vec![]));
}

#[test]
fn what_is_in_files_is_loaded_in_time_for_who_is_due_first() {
    let times: &[u64] = &[2];
    let mut devices = Devices::new(1, 4, &[times; 8], ms(1));
    for model in 4..8 {
        devices.keep(ReplicaKey(model), Some(ms(100)));
    }
    // One is loaded, one waits behind it, and the next is chosen once the first is there.
    for (model, allowed) in [(4, 1000), (5, 1000), (7, 900), (6, 350)] {
        devices.arrive(model, ms(allowed));
    }
    devices.pass_until(at(1000));
    assert_eq!(devices.expired, [], "{:?}", devices.computed);
    assert_eq!(devices.loads, [4, 5, 6, 7]);
}

#[test]
fn who_cannot_wait_for_a_load_is_told_when_to_come_back_and_is_served_then() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(1, 1, &[times, times], ms(1));
    devices.keep(ReplicaKey(1), Some(ms(700)));
    devices.arrive(1, ms(100));
    let refused = |retry_after| Refusal::Loading { retry_after };
    assert_eq!(devices.refused, [(RequestKey(0), refused(ms(710)))]);
    assert_eq!(devices.loads, [1], "it is loaded all the same");
    devices.pass_until(at(300));
    devices.arrive(1, ms(100));
    assert_eq!(devices.refused[1].1, refused(ms(410)), "not once more");
    devices.pass_until(at(710));
    devices.arrive(1, ms(100));
    devices.pass_until(at(2000));
    assert_eq!(devices.computed, [(at(720), 1, 1)]);
    assert_eq!((devices.loads.len(), devices.expired.len()), (1, 0));
    // Nobody asks for it any more.
    devices.arrive(0, ms(100));
    devices.pass_until(at(2100));
    devices.keep(ReplicaKey(1), Some(ms(700)));
    devices.pass_until(at(9000));
    assert_eq!(devices.loads, [1, 0]);
}

#[test]
fn who_may_wait_longer_for_a_load_than_its_objective_does() {
    let times: &[u64] = &[10];
    let mut devices = Devices::new(1, 1, &[times, times], ms(1));
    devices.keep(ReplicaKey(1), Some(ms(700)));
    devices.arrive_patient(1, ms(100), ms(711));
    devices.pass_until(at(1000));
    assert_eq!(devices.computed, [(at(710), 1, 1)]);
    assert_eq!(devices.refused, []);
    // What is in memory is due as ever.
    devices.arrive_patient(0, ms(100), ms(0));
    devices.pass_until(at(2000));
    assert_eq!(devices.computed.last(), Some(&(at(1011), 0, 1)));
    assert_eq!((devices.refused.len(), devices.expired.len()), (0, 0));
}

#[test]
fn weights_that_came_in_vain_do_not_come_again_for_the_same_requests() {
    let times: &[u64] = &[5, 6, 7];
    let mut devices = Devices::new(1, 2, &[times; 5], ms(1));
    // The device is busy with the first one for longer than the others can wait.
    for (model, allowed) in [(2, 6), (3, 7), (0, 5)] {
        devices.arrive(model, ms(allowed));
    }
    devices.pass_until(at(20));
    assert_eq!(devices.computed, [(at(6), 2, 1)]);
    assert_eq!(devices.loads, [2, 3, 0]);
    // They come for others.
    devices.arrive(3, ms(20));
    devices.pass_until(at(100));
    assert_eq!(devices.computed[1], (at(26), 3, 1));
    assert_eq!(devices.loads, [2, 3, 0, 3]);
}

/// A random history of one device whose members move between device, memory and files.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(u32, u64, u64),
    Cool(u32, u64),
    Wait(u64),
    Refuse,
}

proptest! {
    #[test]
    fn members_that_take_the_room_from_each_other_lose_no_request_and_move_no_more_than_they_compute(
        room in 1..4_u64,
        steps in proptest::collection::vec(
            prop_oneof![
                6 => (0..5_u32, 5..400_u64, 0..900_u64).prop_map(|(model, allowed, wait)| Step::Arrive(model, allowed, wait)),
                3 => (0..5_u32, 1..300_u64).prop_map(|(model, load)| Step::Cool(model, load)),
                4 => (0..60_u64).prop_map(Step::Wait),
                1 => Just(Step::Refuse),
            ],
            1..80,
        ),
    ) {
        let times: &[u64] = &[5, 6, 7];
        let mut devices = Devices::new(1, room, &[times; 5], ms(1));
        let (mut refused_copies, mut now) = (0, 0);
        for step in steps {
            match step {
                Step::Arrive(model, allowed, wait) => {
                    devices.arrive_patient(model, ms(allowed), ms(wait));
                }
                Step::Cool(model, load) => {
                    // As the worker does, for weights that are not on the device.
                    if devices.away().contains(&model) {
                        devices.keep(ReplicaKey(model), Some(ms(load)));
                    }
                }
                Step::Wait(time) => {
                    now += time;
                    devices.pass_until(at(now));
                }
                Step::Refuse => {
                    devices.refusals += 1;
                    refused_copies += 1;
                }
            }
        }
        devices.pass_until(at(now + 60_000));
        let computed: usize = devices.computed.iter().map(|(_, _, requests)| requests).sum();
        let ended = computed + devices.expired.len() + devices.refused.len();
        prop_assert_eq!(ended as u64, devices.next_request, "each ends once");
        let asked = devices.refused.iter().filter(|(_, refusal)| matches!(refusal, Refusal::Loading { .. }));
        // A load is for a batch, for one who was told to come back, for requests that expired meanwhile, or was refused by the worker.
        let reasons = devices.computed.len() + asked.count() + devices.expired.len() + refused_copies;
        prop_assert!(devices.loads.len() <= reasons, "{} loads, {reasons} reasons", devices.loads.len());
        let away = devices.away().len() as u64;
        prop_assert!(5 - away <= room, "no more are there than have room");
    }
}
