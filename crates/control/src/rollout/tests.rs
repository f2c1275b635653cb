//! Scenarios of one rollout, and random histories of plans, crashes and lost nodes.

use std::collections::VecDeque;

use packhorse_cluster::{ArtifactDigest, Generation};
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

/// `device` as NODE/DEVICE, `memory` out of ten.
fn placement(model: &str, device: &str, memory: u64) -> Placement {
    Placement {
        program: program(model),
        device: device.parse().unwrap(),
        device_memory: ByteCount::new(MEMORY),
        batch_size: 4,
        compute_share: None,
        memory: ByteCount::new(memory),
    }
}

/// A cluster around the rollout: nodes that do what is wanted and a data plane that serves what it is told, each in its own
/// time.
#[derive(Default)]
struct World {
    generation: u64,
    situation: Situation,
    now: Rollout,
    /// Replicas that never start.
    broken: BTreeSet<ReplicaId>,
}

impl World {
    fn with_nodes(names: &[&str]) -> Self {
        let mut world = Self::default();
        for name in names {
            let view = NodeView::Reporting(BTreeMap::new());
            world.situation.nodes.insert(name.parse().unwrap(), view);
        }
        world
    }

    fn plan(&mut self, placements: &[Placement]) {
        self.generation += 1;
        let (plan, earlier) = replan(
            Generation(self.generation),
            placements,
            &self.situation.plan,
            &self.situation.earlier,
        );
        self.situation.plan = plan;
        self.situation.earlier = earlier;
        self.step();
    }

    fn step(&mut self) {
        self.now = self.situation.step();
        self.situation.earlier.clone_from(&self.now.earlier);
        assert_eq!(
            self.situation.step(),
            self.now,
            "a second look changed the answer"
        );
        let mut wanted: BTreeMap<(&NodeName, &str), u64> = BTreeMap::new();
        let known = self.situation.plan.iter();
        let known: BTreeMap<ReplicaId, u64> = known
            .chain(self.now.earlier.iter().map(|e| &e.replica))
            .map(|replica| (replica.id, replica.memory.as_u64()))
            .collect();
        for (node, state) in &self.now.nodes {
            for replica in &state.replicas {
                let sum = wanted.entry((node, &replica.device)).or_default();
                *sum += known[&replica.id];
                assert!(*sum <= MEMORY, "{node}/{} holds {sum}", replica.device);
            }
        }
    }

    /// The node gets one step nearer to what is wanted of it.
    fn node_works(&mut self, name: &NodeName) {
        let Some(wanted) = self.now.nodes.get(name) else {
            return;
        };
        let Some(NodeView::Reporting(replicas)) = self.situation.nodes.get_mut(name) else {
            return;
        };
        let wanted: BTreeSet<ReplicaId> = wanted.replicas.iter().map(|r| r.id).collect();
        replicas.retain(|id, _| wanted.contains(id));
        for id in wanted {
            let status = replicas.entry(id).or_insert_with(|| ReplicaStatus {
                id,
                state: ReplicaState::Fetching,
                address: None,
                pid: None,
                restarts: 0,
                reason: None,
                memory_bytes: None,
                capacity: None,
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
        self.step();
    }

    /// The data plane gets one step nearer to what it shall serve.
    fn links_work(&mut self) {
        let links = &mut self.situation.links;
        links.retain(|id, _| self.now.serve.contains_key(id));
        for (id, served) in &self.now.serve {
            let link = links.entry(*id).or_insert(Link::Connecting);
            *link = match (*link, served.draining) {
                (Link::Serving, true) => Link::Draining,
                (Link::Connecting, false) => Link::Serving,
                (_, true) => Link::Drained,
                (link, false) => link,
            };
        }
        self.step();
    }

    fn everybody_works(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let names: Vec<NodeName> = self.situation.nodes.keys().cloned().collect();
            for name in names {
                self.node_works(&name);
            }
            self.links_work();
        }
    }

    fn wanted(&self) -> Vec<String> {
        let replicas = self.now.nodes.values().flat_map(|node| &node.replicas);
        replicas.map(|replica| replica.id.to_string()).collect()
    }

    /// The replicas that get batches.
    fn served(&self) -> Vec<String> {
        let served = self.now.serve.iter().filter(|(id, served)| {
            !served.draining && self.situation.links.get(id) == Some(&Link::Serving)
        });
        served.map(|(id, _)| id.to_string()).collect()
    }

    fn set_state(&mut self, id: &str, state: ReplicaState) {
        let id: ReplicaId = id.parse().unwrap();
        for view in self.situation.nodes.values_mut() {
            if let NodeView::Reporting(replicas) = view
                && let Some(status) = replicas.get_mut(&id)
            {
                status.state = state;
            }
        }
        self.step();
    }
}

#[test]
fn an_old_replica_serves_until_the_new_one_does_and_goes_only_when_drained() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 6)]);
    world.everybody_works(3);
    assert_eq!(world.served(), ["1-0"]);

    world.plan(&[placement("m", "n/b", 6)]);
    let node: NodeName = "n".parse().unwrap();
    world.node_works(&node);
    world.node_works(&node);
    assert_eq!(world.wanted(), ["1-0", "2-0"]);
    assert_eq!(world.served(), ["1-0"], "the new one is not connected yet");
    world.links_work();
    assert_eq!(world.served(), ["2-0"]);
    assert_eq!(world.wanted(), ["1-0", "2-0"], "the old one still drains");
    world.links_work();
    assert_eq!(world.wanted(), ["1-0", "2-0"], "the old one still computes");
    world.links_work();
    assert_eq!(world.wanted(), ["2-0"]);
    assert_eq!(world.now.earlier, []);
}

#[test]
fn a_replica_that_the_new_plan_has_too_keeps_its_identity() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 3), placement("m", "n/b", 3)]);
    world.everybody_works(3);
    world.plan(&[
        placement("x", "n/a", 3),
        placement("m", "n/a", 3),
        placement("m", "n/b", 3),
    ]);
    assert_eq!(world.wanted(), ["1-0", "1-1", "2-0"]);
    assert_eq!(world.now.earlier, []);
    assert_eq!(world.served(), ["1-0", "1-1"]);
}

#[test]
fn twins_are_matched_once_each_and_changed_replicas_not_at_all() {
    let twin = placement("m", "n/a", 1);
    let first = place_ids(Generation(1), &[twin.clone(), twin.clone()], []);
    let second = place_ids(
        Generation(2),
        &[twin.clone(), twin.clone(), twin.clone()],
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
            program: program("m:2"),
            ..twin.clone()
        },
    ] {
        assert_eq!(ids(&place_ids(Generation(2), &[changed], &first)), ["2-0"]);
    }
    let remeasured = Placement {
        memory: ByteCount::new(2),
        ..twin
    };
    assert_eq!(
        ids(&place_ids(Generation(2), &[remeasured], &first)),
        ["1-0"]
    );
}

#[test]
fn where_memory_does_not_hold_both_the_old_one_goes_first() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 6)]);
    world.everybody_works(3);
    world.plan(&[Placement {
        batch_size: 8,
        ..placement("m", "n/a", 6)
    }]);
    assert_eq!(world.wanted(), ["1-0"]);
    assert!(world.now.serve[&"1-0".parse().unwrap()].draining);
    assert_eq!(world.now.waiting.len(), 1);
    world.links_work();
    world.links_work();
    assert_eq!(world.wanted(), ["2-0"]);
    world.everybody_works(3);
    assert_eq!(world.served(), ["2-0"]);
}

#[test]
fn a_replica_is_not_broken_for_memory_that_comes_free_by_itself() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 6)]);
    world.everybody_works(3);
    // x needs the memory of m, and m moves to where there is room for it.
    world.plan(&[placement("x", "n/a", 6), placement("m", "n/b", 6)]);
    assert_eq!(world.wanted(), ["1-0", "2-1"]);
    assert!(!world.now.serve[&"1-0".parse().unwrap()].draining);
    world.everybody_works(8);
    assert_eq!(world.served(), ["2-0", "2-1"]);
}

#[test]
fn of_two_models_that_swap_full_devices_only_one_is_interrupted() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("x", "n/a", 6), placement("y", "n/b", 6)]);
    world.everybody_works(3);
    world.plan(&[placement("x", "n/b", 6), placement("y", "n/a", 6)]);
    let draining: Vec<String> = world
        .now
        .earlier
        .iter()
        .filter(|e| e.draining)
        .map(|e| e.replica.model().to_string())
        .collect();
    assert_eq!(
        draining,
        ["y:1"],
        "x is the first that waits, y is in its way"
    );
    for _ in 0..12 {
        world.everybody_works(1);
        assert!(
            world
                .now
                .serve
                .values()
                .any(|s| !s.draining && s.replica.model().name.as_str() == "x")
        );
    }
    assert_eq!(world.served(), ["2-0", "2-1"]);
}

#[test]
fn a_model_that_gets_room_elsewhere_too_is_not_interrupted() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 6)]);
    world.everybody_works(3);
    let larger = |device| Placement {
        batch_size: 8,
        ..placement("m", device, 6)
    };
    world.plan(&[larger("n/a"), larger("n/b")]);
    for _ in 0..10 {
        assert!(!world.served().is_empty());
        world.everybody_works(1);
    }
    assert_eq!(world.served(), ["2-0", "2-1"]);
}

#[test]
fn a_new_replica_that_fails_takes_no_old_one_down() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 4)]);
    world.everybody_works(3);
    world.broken.insert("2-0".parse().unwrap());
    world.plan(&[Placement {
        batch_size: 8,
        ..placement("m", "n/a", 4)
    }]);
    world.everybody_works(5);
    assert_eq!(world.served(), ["1-0"]);
    assert_eq!(world.wanted(), ["1-0", "2-0"]);
}

#[test]
fn a_removed_models_replicas_drain_and_go() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 4), placement("x", "n/a", 4)]);
    world.everybody_works(3);
    world.plan(&[placement("x", "n/a", 4)]);
    assert_eq!(world.served(), ["1-1"]);
    assert_eq!(world.wanted(), ["1-0", "1-1"]);
    world.links_work();
    world.links_work();
    assert_eq!(world.wanted(), ["1-1"]);
}

#[test]
fn a_lost_nodes_replicas_are_not_connected_and_nothing_waits_for_them() {
    let mut world = World::with_nodes(&["n", "o"]);
    world.plan(&[placement("m", "n/a", 4), placement("m", "o/a", 4)]);
    world.everybody_works(3);
    world
        .situation
        .nodes
        .insert("n".parse().unwrap(), NodeView::Lost);
    world.step();
    assert_eq!(world.served(), ["1-1"]);
    world.plan(&[placement("m", "o/a", 4)]);
    assert_eq!(world.now.earlier, []);
    assert_eq!(world.wanted(), ["1-1"]);
}

#[test]
fn a_node_is_told_nothing_before_it_has_reported_after_a_start_of_the_gateway() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 4)]);
    world.everybody_works(3);
    world.plan(&[placement("m", "n/b", 4)]);
    let name: NodeName = "n".parse().unwrap();
    let report = world
        .situation
        .nodes
        .insert(name.clone(), NodeView::Awaited);
    world.situation.links.clear();
    world.step();
    assert!(world.now.nodes.is_empty());
    assert_eq!(
        world.now.earlier.len(),
        1,
        "what was served before is not given up"
    );
    world.situation.nodes.insert(name, report.unwrap());
    world.step();
    assert_eq!(world.wanted(), ["1-0", "2-0"]);
    world.everybody_works(8);
    assert_eq!(world.served(), ["2-0"]);
    assert_eq!(world.wanted(), ["2-0"]);
}

#[test]
fn an_old_replica_that_does_not_answer_any_more_is_not_kept() {
    let mut world = World::with_nodes(&["n"]);
    world.plan(&[placement("m", "n/a", 4)]);
    world.everybody_works(3);
    world.plan(&[placement("m", "n/b", 4)]);
    world.set_state("1-0", ReplicaState::BackingOff);
    assert_eq!(world.wanted(), ["2-0"]);
}

/// What may happen to a cluster.
#[derive(Clone, Debug)]
enum Happening {
    Plan(Vec<(usize, usize, u64)>),
    NodeWorks(usize),
    LinksWork,
    Crash(usize),
    NodeLost(usize),
    NodeBack(usize),
}

const NODES: [&str; 2] = ["n", "o"];
const DEVICES: [&str; 4] = ["n/a", "n/b", "o/a", "o/b"];
const MODELS: [&str; 4] = ["w", "x", "y", "z"];

fn happening() -> impl Strategy<Value = Happening> {
    let replica = (0..MODELS.len(), 0..DEVICES.len(), 1..=7_u64);
    prop_oneof![
        2 => prop::collection::vec(replica, 0..8).prop_map(Happening::Plan),
        6 => (0..NODES.len()).prop_map(Happening::NodeWorks),
        6 => Just(Happening::LinksWork),
        1 => any::<usize>().prop_map(Happening::Crash),
        1 => (0..NODES.len()).prop_map(Happening::NodeLost),
        2 => (0..NODES.len()).prop_map(Happening::NodeBack),
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

impl World {
    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Plan(replicas) => self.plan(&sound_plan(&replicas)),
            Happening::NodeWorks(node) => self.node_works(&NODES[node].parse().unwrap()),
            Happening::LinksWork => self.links_work(),
            Happening::Crash(which) => {
                let served: Vec<ReplicaId> = self.now.serve.keys().copied().collect();
                if !served.is_empty() {
                    let id = served[which % served.len()];
                    self.situation.links.insert(id, Link::Connecting);
                    self.set_state(&id.to_string(), ReplicaState::BackingOff);
                }
            }
            Happening::NodeLost(node) => {
                self.situation
                    .nodes
                    .insert(NODES[node].parse().unwrap(), NodeView::Lost);
                self.step();
            }
            Happening::NodeBack(node) => {
                let view = self
                    .situation
                    .nodes
                    .get_mut(&NODES[node].parse().unwrap())
                    .unwrap();
                if *view == NodeView::Lost {
                    *view = NodeView::Reporting(BTreeMap::new());
                    self.step();
                }
            }
        }
    }

    /// Models with a replica that gets batches.
    fn models_served(&self) -> BTreeSet<ModelId> {
        let served = self.now.serve.values();
        served
            .filter(|s| !s.draining && self.situation.serves(&s.replica))
            .map(|s| s.replica.model().clone())
            .collect()
    }

    /// Whether every device holds the plan and all that is left of earlier ones.
    fn memory_allows_both(&self) -> bool {
        let mut sums: BTreeMap<&DeviceId, u64> = BTreeMap::new();
        let left = self.situation.earlier.iter().map(|e| &e.replica);
        for replica in self.situation.plan.iter().chain(left) {
            *sums.entry(&replica.device).or_default() += replica.memory.as_u64();
        }
        sums.values().all(|&sum| sum <= MEMORY)
    }
}

proptest! {
    /// That memory is never overcommitted and that a second look changes nothing is asserted at every step of the world.
    #[test]
    fn whatever_happened_the_cluster_becomes_the_plan(happenings in prop::collection::vec(happening(), 1..60)) {
        let mut world = World::with_nodes(&NODES);
        for happening in happenings {
            world.happens(happening);
        }
        for node in 0..NODES.len() {
            world.happens(Happening::NodeBack(node));
        }
        world.everybody_works(60);
        let planned: BTreeSet<ReplicaId> = world.situation.plan.iter().map(|p| p.id).collect();
        let served: BTreeSet<ReplicaId> = world.now.serve.keys().copied().collect();
        let wanted: VecDeque<String> = world.wanted().into();
        prop_assert_eq!(wanted.len(), planned.len());
        prop_assert_eq!(served, planned);
        prop_assert_eq!(world.served().len(), wanted.len());
        prop_assert!(world.now.earlier.is_empty() && world.now.waiting.is_empty());
    }

    /// Without crashes and losses, a model that is served and that the new plan has stays served while memory allows it.
    #[test]
    fn no_step_of_a_rollout_interrupts_a_model(happenings in prop::collection::vec(happening(), 1..60)) {
        let mut world = World::with_nodes(&NODES);
        for happening in happenings {
            if matches!(happening, Happening::Crash(_) | Happening::NodeLost(_)) {
                continue;
            }
            let before = world.models_served();
            world.happens(happening);
            if world.memory_allows_both() {
                let after = world.models_served();
                for model in world.situation.plan.iter().map(PlacedReplica::model) {
                    prop_assert!(!before.contains(model) || after.contains(model), "{model} is interrupted");
                }
            }
        }
    }
}
