//! Scenarios of one rollout, and random histories of plans, crashes and lost nodes.

use std::{collections::VecDeque, sync::Arc};

use packhorse_cluster::{
    ArtifactDigest, BackboneId, ComputeShare, Generation, ReplicaSpec, ReplicaState, ReplicaStatus,
    WorkerKind,
};
use proptest::prelude::*;

use super::*;

const MEMORY: u64 = 10;

fn program(model: &str) -> Arc<Program> {
    Arc::new(Program {
        model: model.parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size: 8,
        inputs: Vec::new(),
        outputs: Vec::new(),
    })
}

type Placement = ReplicaSpec<Arc<Program>>;

/// `device` as NODE/DEVICE, `memory` out of ten.
fn placement(model: &str, device: &str, memory: u64) -> Placement {
    ReplicaSpec {
        memory: Some(ByteCount::new(memory)),
        ..ReplicaSpec::new(program(model), device.parse().unwrap(), 4)
    }
}

/// The nodes and links of a simulated cluster, as the rollout observes them.
#[derive(Clone, Default)]
struct SimObservations {
    nodes: BTreeMap<NodeName, SimNode>,
    links: BTreeMap<ReplicaId, LinkPhase>,
    successors: BTreeMap<ModelId, Vec<ModelId>>,
}

#[derive(Clone)]
struct SimNode {
    phase: NodePhase,
    statuses: BTreeMap<ReplicaId, ReplicaStatus>,
}

impl Observations for SimObservations {
    fn memory(&self, _: &DeviceId) -> ByteCount {
        ByteCount::new(MEMORY)
    }

    fn node(&self, replica: &PlacedReplica) -> NodePhase {
        self.nodes[replica.spec.device.node()].phase
    }

    fn status(&self, replica: &PlacedReplica) -> Option<&ReplicaStatus> {
        self.nodes[replica.spec.device.node()]
            .statuses
            .get(&replica.id)
    }

    fn link(&self, replica: ReplicaId) -> Option<LinkPhase> {
        self.links.get(&replica).copied()
    }

    fn successors(&self, model: &ModelId) -> Vec<ModelId> {
        self.successors.get(model).cloned().unwrap_or_default()
    }

    fn loss(&self, _: &ModelId) -> u64 {
        0
    }
}

/// A simulated cluster around the rollout: nodes that start the wanted replicas and a data plane that serves its target, each
/// step by step.
#[derive(Default)]
struct SimCluster {
    generation: u64,
    rollout: Rollout,
    observed: SimObservations,
    /// The wanted replicas that each node was last told.
    published: BTreeMap<NodeName, Vec<WantedReplica>>,
    /// The replicas that the data plane was told to serve, with true for those that drain.
    serve: BTreeMap<ReplicaId, bool>,
    /// The replicas that never start.
    broken: BTreeSet<ReplicaId>,
}

impl SimCluster {
    fn with_nodes(names: &[&str]) -> Self {
        let mut cluster = Self::default();
        for name in names {
            let node = SimNode {
                phase: NodePhase::Reporting,
                statuses: BTreeMap::new(),
            };
            cluster.observed.nodes.insert(name.parse().unwrap(), node);
        }
        cluster
    }

    fn plan(&mut self, placements: &[Placement]) {
        self.generation += 1;
        let existing = self.rollout.iter();
        let plan = assign_ids(
            Generation(self.generation),
            placements.to_vec(),
            existing.filter(|replica| replica.phase != ReplicaPhase::Draining),
        );
        self.rollout.adopt(plan);
        self.step();
    }

    fn step(&mut self) {
        let change = self.rollout.step(&self.observed);
        for node in &change.nodes {
            if self.observed.nodes[node].phase == NodePhase::Reporting {
                let wanted = self.rollout.wanted(node);
                self.published.insert(node.clone(), wanted);
            }
        }
        for id in &change.replicas {
            let served = self
                .rollout
                .get(*id)
                .filter(|replica| Rollout::ready_address(replica, &self.observed).is_some());
            match served {
                Some(replica) => {
                    let draining = replica.phase == ReplicaPhase::Draining;
                    self.serve.insert(*id, draining);
                }
                None => {
                    self.serve.remove(id);
                }
            }
        }
        self.check();
    }

    /// Asserts that a step over everything changes nothing, and that no memory is overcommitted.
    fn check(&mut self) {
        let phases = |rollout: &Rollout| -> Vec<(ReplicaId, ReplicaPhase)> {
            rollout.iter().map(|r| (r.id, r.phase)).collect()
        };
        let (before, waiting) = (phases(&self.rollout), self.rollout.waiting.clone());
        let all: Vec<ReplicaId> = self.rollout.iter().map(|replica| replica.id).collect();
        self.rollout.touched.extend(all);
        self.rollout.step(&self.observed);
        assert_eq!(phases(&self.rollout), before, "another step changed phases");
        assert_eq!(self.rollout.waiting, waiting, "another step started others");
        for (name, node) in &self.observed.nodes {
            if node.phase == NodePhase::Reporting {
                let wanted = self.rollout.wanted(name);
                let published = self.published.get(name).cloned().unwrap_or_default();
                assert_eq!(published, wanted, "{name} was not told");
            }
        }
        for replica in self.rollout.iter() {
            let ready = Rollout::ready_address(replica, &self.observed).is_some();
            let draining = replica.phase == ReplicaPhase::Draining;
            let served = self.serve.get(&replica.id).copied();
            assert_eq!(served, ready.then_some(draining), "{}", replica.id);
        }
        let mut held: BTreeMap<(&NodeName, &str), u64> = BTreeMap::new();
        for (node, replicas) in &self.published {
            for replica in replicas {
                let Some(placed) = self.rollout.get(replica.id) else {
                    continue;
                };
                let sum = held.entry((node, &replica.device)).or_default();
                *sum += placed.spec.memory.unwrap().as_u64();
                assert!(*sum <= MEMORY, "{node}/{} holds {sum}", replica.device);
            }
        }
    }

    /// The node takes one step towards its wanted state.
    fn step_node(&mut self, name: &NodeName) {
        let Some(wanted) = self.published.get(name) else {
            return;
        };
        let wanted: BTreeSet<ReplicaId> = wanted.iter().map(|r| r.id).collect();
        let node = self.observed.nodes.get_mut(name).unwrap();
        if node.phase != NodePhase::Reporting {
            return;
        }
        let stopped = node.statuses.extract_if(.., |id, _| !wanted.contains(id));
        let mut changed: Vec<ReplicaId> = stopped.map(|(id, _)| id).collect();
        for id in wanted {
            changed.push(id);
            let status = node.statuses.entry(id).or_insert_with(|| ReplicaStatus {
                id,
                state: ReplicaState::Fetching,
                address: None,
                local_path: None,
                pid: None,
                restarts: 0,
                reason: None,
                memory_bytes: None,
                capacity: None,
                verification: None,
                worker: WorkerKind::Own,
            });
            status.state = match status.state {
                ReplicaState::Fetching | ReplicaState::BackingOff => ReplicaState::Loading,
                ReplicaState::Loading if self.broken.contains(&id) => ReplicaState::Failed,
                ReplicaState::Loading => ReplicaState::Ready,
                state => state,
            };
            let ready = status.state == ReplicaState::Ready;
            status.address = ready.then(|| "127.0.0.1:1".parse().unwrap());
        }
        for id in changed {
            self.rollout.touch(id);
        }
        self.step();
    }

    /// The data plane takes one step towards its target.
    fn step_links(&mut self) {
        let links = &mut self.observed.links;
        links.retain(|id, _| self.serve.contains_key(id));
        for (id, draining) in &self.serve {
            let link = links.entry(*id).or_insert(LinkPhase::Connecting);
            *link = match (*link, draining) {
                (LinkPhase::Serving, true) => LinkPhase::Draining,
                (LinkPhase::Connecting, false) => LinkPhase::Serving,
                (_, true) => LinkPhase::Drained,
                (link, false) => link,
            };
            self.rollout.touch(*id);
        }
        self.step();
    }

    fn advance(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let names: Vec<NodeName> = self.observed.nodes.keys().cloned().collect();
            for name in names {
                self.step_node(&name);
            }
            self.step_links();
        }
    }

    fn set_phase(&mut self, node: &str, phase: NodePhase) {
        let name: NodeName = node.parse().unwrap();
        self.observed.nodes.get_mut(&name).unwrap().phase = phase;
        self.rollout.touch_node(&name);
        self.step();
    }

    fn wanted(&self) -> Vec<String> {
        let replicas = self.published.values().flatten();
        replicas.map(|replica| replica.id.to_string()).collect()
    }

    /// The replicas of earlier plans.
    fn earlier(&self) -> Vec<String> {
        let earlier = self.rollout.iter().filter(|replica| !replica.is_planned());
        earlier.map(|replica| replica.id.to_string()).collect()
    }

    fn is_draining(&self, id: &str) -> bool {
        let replica = self.rollout.get(id.parse().unwrap());
        replica.unwrap().phase == ReplicaPhase::Draining
    }

    /// The replicas that get batches.
    fn served(&self) -> Vec<String> {
        let served = self.serve.iter().filter(|(id, draining)| {
            !**draining && self.observed.links.get(id) == Some(&LinkPhase::Serving)
        });
        served.map(|(id, _)| id.to_string()).collect()
    }

    fn set_state(&mut self, id: &str, state: ReplicaState) {
        let id: ReplicaId = id.parse().unwrap();
        for node in self.observed.nodes.values_mut() {
            if let Some(status) = node.statuses.get_mut(&id) {
                status.state = state;
            }
        }
        self.rollout.touch(id);
        self.step();
    }
}

#[test]
fn an_old_replica_serves_until_the_new_one_does_and_goes_only_when_drained() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 6)]);
    cluster.advance(3);
    assert_eq!(cluster.served(), ["1-0"]);

    cluster.plan(&[placement("m", "n/b", 6)]);
    let node: NodeName = "n".parse().unwrap();
    cluster.step_node(&node);
    cluster.step_node(&node);
    assert_eq!(cluster.wanted(), ["1-0", "2-0"]);
    assert_eq!(
        cluster.served(),
        ["1-0"],
        "the new one is not connected yet"
    );
    cluster.step_links();
    assert_eq!(cluster.served(), ["2-0"]);
    assert_eq!(cluster.wanted(), ["1-0", "2-0"], "the old one still drains");
    cluster.step_links();
    assert_eq!(
        cluster.wanted(),
        ["1-0", "2-0"],
        "the old one still computes"
    );
    cluster.step_links();
    assert_eq!(cluster.wanted(), ["2-0"]);
    assert!(cluster.earlier().is_empty());
}

#[test]
fn a_worker_of_which_one_replica_has_drained_still_holds_its_memory() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    let shared = |model: &str, memory| Placement {
        backbone: Some(BackboneId::new([], 0)),
        pool: None,
        ..placement(model, "n/a", memory)
    };
    cluster.plan(&[shared("m", 6), shared("o", 0)]);
    cluster.advance(3);
    assert_eq!(cluster.served(), ["1-0", "1-1"]);
    cluster.broken.insert("2-1".parse().unwrap());
    cluster.plan(&[placement("m", "n/b", 6), placement("o", "n/c", 6)]);
    cluster.advance(4);
    assert!(cluster.is_draining("1-0"));
    assert_eq!(cluster.served(), ["1-1", "2-0"]);
    cluster.plan(&[placement("m", "n/b", 6), placement("o", "n/a", 6)]);
    cluster.advance(6);
    assert_eq!(cluster.served(), ["2-0", "3-1"]);
    assert!(cluster.earlier().is_empty());
}

#[test]
fn a_replica_that_the_new_plan_has_too_keeps_its_identity() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 3), placement("m", "n/b", 3)]);
    cluster.advance(3);
    cluster.plan(&[
        placement("x", "n/a", 3),
        placement("m", "n/a", 3),
        placement("m", "n/b", 3),
    ]);
    assert_eq!(cluster.wanted(), ["1-0", "1-1", "2-0"]);
    assert!(cluster.earlier().is_empty());
    assert_eq!(cluster.served(), ["1-0", "1-1"]);
}

#[test]
fn twins_are_matched_once_each_and_changed_replicas_not_at_all() {
    let twin = placement("m", "n/a", 1);
    let first = assign_ids(Generation(1), vec![twin.clone(), twin.clone()], []);
    let second = assign_ids(
        Generation(2),
        vec![twin.clone(), twin.clone(), twin.clone()],
        &first,
    );
    let ids = |plan: &[PlacedReplica]| plan.iter().map(|r| r.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&second), ["1-0", "1-1", "2-2"]);
    for changed in [
        Placement {
            batch_size: 8,
            ..twin.clone()
        },
        Placement {
            device: "n/b".parse().unwrap(),
            ..twin.clone()
        },
        Placement {
            compute_share: Some(ComputeShare::WHOLE),
            ..twin.clone()
        },
        Placement {
            model: program("m:2"),
            ..twin.clone()
        },
    ] {
        assert_eq!(
            ids(&assign_ids(Generation(2), vec![changed], &first)),
            ["2-0"]
        );
    }
    let remeasured = Placement {
        memory: Some(ByteCount::new(2)),
        ..twin
    };
    assert_eq!(
        ids(&assign_ids(Generation(2), vec![remeasured], &first)),
        ["1-0"]
    );
}

#[test]
fn where_memory_does_not_hold_both_the_old_one_goes_first() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 6)]);
    cluster.advance(3);
    cluster.plan(&[Placement {
        batch_size: 8,
        ..placement("m", "n/a", 6)
    }]);
    assert_eq!(cluster.wanted(), ["1-0"]);
    assert!(cluster.is_draining("1-0"));
    assert_eq!(cluster.rollout.waiting.len(), 1);
    cluster.step_links();
    cluster.step_links();
    assert_eq!(cluster.wanted(), ["2-0"]);
    cluster.advance(3);
    assert_eq!(cluster.served(), ["2-0"]);
}

#[test]
fn a_replica_is_not_broken_for_memory_that_comes_free_by_itself() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 6)]);
    cluster.advance(3);
    // x needs the memory of m, and m moves to where there is room for it.
    cluster.plan(&[placement("x", "n/a", 6), placement("m", "n/b", 6)]);
    assert_eq!(cluster.wanted(), ["1-0", "2-1"]);
    assert!(!cluster.is_draining("1-0"));
    cluster.advance(8);
    assert_eq!(cluster.served(), ["2-0", "2-1"]);
}

#[test]
fn of_two_models_that_swap_full_devices_only_one_is_interrupted() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("x", "n/a", 6), placement("y", "n/b", 6)]);
    cluster.advance(3);
    cluster.plan(&[placement("x", "n/b", 6), placement("y", "n/a", 6)]);
    let is_draining = |replica: &&PlacedReplica| replica.phase == ReplicaPhase::Draining;
    let draining = cluster.rollout.iter().filter(is_draining);
    let draining: Vec<String> = draining.map(|r| r.spec.model.model.to_string()).collect();
    assert_eq!(
        draining,
        ["y:1"],
        "x is the first that waits, y is in its way"
    );
    for _ in 0..12 {
        cluster.advance(1);
        let mut served = cluster.serve.iter().filter(|(_, draining)| !**draining);
        assert!(served.any(|(id, _)| {
            let replica = cluster.rollout.get(*id).unwrap();
            replica.spec.model.model.name.as_str() == "x"
        }));
    }
    assert_eq!(cluster.served(), ["2-0", "2-1"]);
}

#[test]
fn a_model_that_gets_room_elsewhere_too_is_not_interrupted() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 6)]);
    cluster.advance(3);
    let larger = |device| Placement {
        batch_size: 8,
        ..placement("m", device, 6)
    };
    cluster.plan(&[larger("n/a"), larger("n/b")]);
    for _ in 0..10 {
        assert!(!cluster.served().is_empty());
        cluster.advance(1);
    }
    assert_eq!(cluster.served(), ["2-0", "2-1"]);
}

#[test]
fn a_new_replica_that_fails_takes_no_old_one_down() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 4)]);
    cluster.advance(3);
    cluster.broken.insert("2-0".parse().unwrap());
    cluster.plan(&[Placement {
        batch_size: 8,
        ..placement("m", "n/a", 4)
    }]);
    cluster.advance(5);
    assert_eq!(cluster.served(), ["1-0"]);
    assert_eq!(cluster.wanted(), ["1-0", "2-0"]);
}

#[test]
fn a_removed_models_replicas_drain_and_go() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 4), placement("x", "n/a", 4)]);
    cluster.advance(3);
    cluster.plan(&[placement("x", "n/a", 4)]);
    assert_eq!(cluster.served(), ["1-1"]);
    assert_eq!(cluster.wanted(), ["1-0", "1-1"]);
    cluster.step_links();
    cluster.step_links();
    assert_eq!(cluster.wanted(), ["1-1"]);
}

#[test]
fn a_lost_nodes_replicas_are_not_connected_and_nothing_waits_for_them() {
    let mut cluster = SimCluster::with_nodes(&["n", "o"]);
    cluster.plan(&[placement("m", "n/a", 4), placement("m", "o/a", 4)]);
    cluster.advance(3);
    cluster.set_phase("n", NodePhase::Lost);
    assert_eq!(cluster.served(), ["1-1"]);
    cluster.plan(&[placement("m", "o/a", 4)]);
    assert!(cluster.earlier().is_empty());
    let wanted = |node: &str| cluster.rollout.wanted(&node.parse().unwrap());
    assert_eq!((wanted("n").len(), wanted("o").len()), (0, 1));
}

#[test]
fn a_node_is_told_nothing_before_it_has_reported_after_a_start_of_the_gateway() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 4)]);
    cluster.advance(3);
    cluster.plan(&[placement("m", "n/b", 4)]);
    let told = cluster.published.clone();
    cluster.observed.links.clear();
    cluster.set_phase("n", NodePhase::Awaited);
    assert_eq!(cluster.published, told);
    assert_eq!(
        cluster.earlier(),
        ["1-0"],
        "what was served before is not given up"
    );
    cluster.set_phase("n", NodePhase::Reporting);
    assert_eq!(cluster.wanted(), ["1-0", "2-0"]);
    cluster.advance(8);
    assert_eq!(cluster.served(), ["2-0"]);
    assert_eq!(cluster.wanted(), ["2-0"]);
}

#[test]
fn an_old_replica_that_does_not_answer_any_more_is_not_kept() {
    let mut cluster = SimCluster::with_nodes(&["n"]);
    cluster.plan(&[placement("m", "n/a", 4)]);
    cluster.advance(3);
    cluster.plan(&[placement("m", "n/b", 4)]);
    cluster.set_state("1-0", ReplicaState::BackingOff);
    assert_eq!(cluster.wanted(), ["2-0"]);
}

/// An event of a random history.
#[derive(Clone, Debug)]
enum SimEvent {
    Plan(Vec<(usize, usize, u64)>),
    StepNode(usize),
    StepLinks,
    Crash(usize),
    NodeLost(usize),
    NodeBack(usize),
}

const NODES: [&str; 2] = ["n", "o"];
const DEVICES: [&str; 4] = ["n/a", "n/b", "o/a", "o/b"];
const MODELS: [&str; 4] = ["w", "x", "y", "z"];

fn sim_event() -> impl Strategy<Value = SimEvent> {
    let replica = (0..MODELS.len(), 0..DEVICES.len(), 1..=7_u64);
    prop_oneof![
        2 => prop::collection::vec(replica, 0..8).prop_map(SimEvent::Plan),
        6 => (0..NODES.len()).prop_map(SimEvent::StepNode),
        6 => Just(SimEvent::StepLinks),
        1 => any::<usize>().prop_map(SimEvent::Crash),
        1 => (0..NODES.len()).prop_map(SimEvent::NodeLost),
        2 => (0..NODES.len()).prop_map(SimEvent::NodeBack),
    ]
}

/// The replicas that fit, so that each plan alone keeps to the memory; a model needs the same memory everywhere.
fn sound_plan(replicas: &[(usize, usize, u64)]) -> Vec<Placement> {
    let mut used = [0; DEVICES.len()];
    let mut plan = Vec::new();
    for &(model, device, batch) in replicas {
        let memory = model as u64 + 2;
        if used[device] + memory <= MEMORY {
            used[device] += memory;
            plan.push(Placement {
                batch_size: u32::try_from(batch).unwrap(),
                ..placement(MODELS[model], DEVICES[device], memory)
            });
        }
    }
    plan
}

impl SimCluster {
    fn apply(&mut self, event: SimEvent) {
        match event {
            SimEvent::Plan(replicas) => self.plan(&sound_plan(&replicas)),
            SimEvent::StepNode(node) => self.step_node(&NODES[node].parse().unwrap()),
            SimEvent::StepLinks => self.step_links(),
            SimEvent::Crash(which) => {
                let served: Vec<ReplicaId> = self.serve.keys().copied().collect();
                if !served.is_empty() {
                    let id = served[which % served.len()];
                    self.observed.links.insert(id, LinkPhase::Connecting);
                    self.set_state(&id.to_string(), ReplicaState::BackingOff);
                }
            }
            SimEvent::NodeLost(node) => self.set_phase(NODES[node], NodePhase::Lost),
            SimEvent::NodeBack(node) => {
                let name: NodeName = NODES[node].parse().unwrap();
                let node = self.observed.nodes.get_mut(&name).unwrap();
                if node.phase == NodePhase::Lost {
                    node.statuses.clear();
                    self.set_phase(name.as_str(), NodePhase::Reporting);
                }
            }
        }
    }

    /// The models with a replica that gets batches.
    fn models_served(&self) -> BTreeSet<ModelId> {
        let served = self.serve.iter().filter(|(_, draining)| !**draining);
        served
            .filter(|(id, _)| self.observed.links.get(id) == Some(&LinkPhase::Serving))
            .filter_map(|(id, _)| self.rollout.get(*id))
            .map(|replica| replica.spec.model.model.clone())
            .collect()
    }

    /// Returns true if every device has the memory for the plan and the remaining replicas of earlier ones.
    fn memory_allows_both(&self) -> bool {
        let mut sums: BTreeMap<&DeviceId, u64> = BTreeMap::new();
        for replica in self.rollout.iter() {
            let memory = replica.spec.memory.unwrap().as_u64();
            *sums.entry(&replica.spec.device).or_default() += memory;
        }
        sums.values().all(|&sum| sum <= MEMORY)
    }
}

proptest! {
    /// Each step of the cluster asserts that no memory is overcommitted and that a second step changes nothing.
    #[test]
    fn whatever_happened_the_cluster_becomes_the_plan(events in prop::collection::vec(sim_event(), 1..60)) {
        let mut cluster = SimCluster::with_nodes(&NODES);
        for event in events {
            cluster.apply(event);
        }
        for node in 0..NODES.len() {
            cluster.apply(SimEvent::NodeBack(node));
        }
        cluster.advance(60);
        let planned: BTreeSet<ReplicaId> = cluster.rollout.planned().map(|p| p.id).collect();
        let served: BTreeSet<ReplicaId> = cluster.serve.keys().copied().collect();
        let wanted: VecDeque<String> = cluster.wanted().into();
        prop_assert_eq!(wanted.len(), planned.len());
        prop_assert_eq!(served, planned);
        prop_assert_eq!(cluster.served().len(), wanted.len());
        prop_assert!(cluster.earlier().is_empty() && cluster.rollout.waiting.is_empty());
    }

    /// Without crashes and losses, a model that is served and that the new plan has stays served while memory allows it.
    #[test]
    fn no_step_of_a_rollout_interrupts_a_model(events in prop::collection::vec(sim_event(), 1..60)) {
        let mut cluster = SimCluster::with_nodes(&NODES);
        for event in events {
            if matches!(event, SimEvent::Crash(_) | SimEvent::NodeLost(_)) {
                continue;
            }
            let before = cluster.models_served();
            cluster.apply(event);
            if cluster.memory_allows_both() {
                let after = cluster.models_served();
                for model in cluster.rollout.planned().map(|p| &p.spec.model.model) {
                    prop_assert!(!before.contains(model) || after.contains(model), "{model} is interrupted");
                }
            }
        }
    }
}
