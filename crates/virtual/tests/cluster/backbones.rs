//! Models that share a backbone: one worker serves them, while models come and go and things fail.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{ModelSpec, NodeName};
use packhorse_control::Command;
use packhorse_reconcile::Task;

use crate::{
    estimates::operators,
    virtual_cluster::{Settings, VirtualCluster, name, spec},
};

const KIND: &str = "T4";
const LIMIT: Duration = Duration::from_mins(5);

/// Returns the operators of a program of 900 MiB of which all weights but some are those of every other such program.
pub(crate) fn operators_of_backbone() -> String {
    let operators = operators(900, 1.0);
    let open = operators.strip_suffix('}').unwrap();
    format!(r#"{open},"weights":[[7,800000000],[0,1000000]]}}"#)
}

/// Returns a cluster of nodes with a device of this memory each, in MiB, whose models all share a backbone.
fn cluster(nodes: usize, memory: u64) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    for number in 0..nodes {
        let name = format!("n{number}");
        cluster.add_node(&name, KIND, 1, memory);
        let behaviour = &mut cluster.node(&name).behaviour;
        behaviour.operators = Some((Duration::from_millis(500), operators_of_backbone()));
    }
    cluster
}

/// Returns the models that each serving worker runs.
fn workers(cluster: &VirtualCluster) -> Vec<BTreeSet<String>> {
    let processes = cluster
        .nodes
        .iter()
        .flat_map(|machine| machine.processes.values());
    let served = processes.filter_map(|process| match &process.task {
        Task::Serve(replicas) => {
            let models = replicas
                .iter()
                .map(|replica| replica.program.model.to_string());
            Some(models.collect())
        }
        Task::Measure(_) | Task::Inspect(_) => None,
    });
    served.collect()
}

fn set(models: &[&str]) -> BTreeSet<String> {
    models.iter().map(ToString::to_string).collect()
}

fn serve(cluster: &VirtualCluster, models: &[&str]) -> bool {
    models
        .iter()
        .all(|model| !cluster.serving(model).is_empty())
}

/// Registers models and waits until they serve and nothing moves any more.
fn settle(cluster: &mut VirtualCluster, models: &[&str]) {
    for model in models {
        cluster.register(model, 20.0);
    }
    cluster.run_until("all serve", LIMIT, |c| serve(c, models) && c.is_healthy());
    cluster.run_for(Duration::from_secs(30));
    assert!(cluster.is_healthy());
}

#[test]
fn models_with_one_backbone_are_served_by_one_worker_in_the_memory_of_one() {
    // 1 GiB for one model, and no place for a second.
    let mut cluster = cluster(1, 1900);
    settle(&mut cluster, &["a:1", "b:1", "c:1"]);
    assert_eq!(workers(&cluster), [set(&["a:1", "b:1", "c:1"])]);
    let plan = cluster.controller().plan().unwrap();
    let memory: u64 = plan
        .replicas
        .iter()
        .map(|r| r.spec.memory.unwrap().as_u64())
        .sum();
    assert_eq!(plan.replicas.len(), 3);
    assert!(memory < 1100 << 20, "{memory}");
}

#[test]
fn a_model_that_comes_or_goes_moves_the_others_to_another_worker_without_an_interruption() {
    let mut cluster = cluster(1, 8192);
    settle(&mut cluster, &["a:1", "b:1"]);
    let before = cluster.serving("a:1");
    for model in ["a:1", "b:1"] {
        cluster.interruptions.insert(model.parse().unwrap(), 0);
    }
    settle(&mut cluster, &["c:1"]);
    assert_eq!(workers(&cluster), [set(&["a:1", "b:1", "c:1"])]);
    assert_ne!(cluster.serving("a:1"), before);
    let removed = Command::RemoveModel(name("b"), None);
    cluster.command_and_wait(removed).unwrap();
    cluster.interruptions.remove(&"b:1".parse().unwrap());
    cluster.run_until("b is gone", LIMIT, |c| {
        workers(c) == [set(&["a:1", "c:1"])] && c.is_healthy()
    });
    assert!(
        cluster.interruptions.values().all(|count| *count == 0),
        "{:?}",
        cluster.interruptions
    );
}

#[test]
fn a_worker_that_dies_comes_back_with_all_its_models() {
    let mut cluster = cluster(1, 8192);
    settle(&mut cluster, &["a:1", "b:1", "c:1"]);
    let node: NodeName = "n0".parse().unwrap();
    cluster.kill_worker(&node, 0);
    cluster.run_until("all are gone", LIMIT, |c| {
        ["a:1", "b:1", "c:1"]
            .iter()
            .all(|model| c.serving(model).is_empty())
    });
    cluster.run_until("all serve again", LIMIT, |c| {
        serve(c, &["a:1", "b:1", "c:1"])
    });
    assert_eq!(workers(&cluster).len(), 1);
}

#[test]
fn a_gateway_and_an_agent_that_start_again_leave_the_worker_alone() {
    let mut cluster = cluster(1, 8192);
    settle(&mut cluster, &["a:1", "b:1", "c:1"]);
    let (before, starts) = (cluster.serving("b:1"), cluster.worker_starts());
    cluster.kill_gateway(true);
    cluster.start_gateway();
    cluster.run_until("all serve", LIMIT, |c| serve(c, &["a:1", "b:1", "c:1"]));
    let node: NodeName = "n0".parse().unwrap();
    cluster.kill_agent(&node);
    cluster.run_for(Duration::from_secs(2));
    cluster.start_agent(&node);
    cluster.run_for(Duration::from_mins(1));
    assert_eq!(cluster.serving("b:1"), before);
    assert_eq!(cluster.worker_starts(), starts);
    assert!(cluster.is_healthy());
}

#[test]
fn a_model_with_a_far_stricter_slo_keeps_a_worker_of_its_own() {
    let mut cluster = cluster(1, 8192);
    settle(&mut cluster, &["a:1", "b:1"]);
    let strict = ModelSpec {
        slo: Duration::from_millis(40),
        ..spec("c:1", 20.0)
    };
    let register = Command::Register(Box::new(strict), 1);
    cluster.command_and_wait(register).unwrap();
    cluster.run_until("c serves", LIMIT, |c| serve(c, &["c:1"]) && c.is_healthy());
    let mut found = workers(&cluster);
    found.sort();
    assert_eq!(found, [set(&["a:1", "b:1"]), set(&["c:1"])]);
}

#[test]
fn of_more_models_than_one_worker_runs_the_others_share_a_second_one() {
    let mut cluster = cluster(1, 8192);
    let names: Vec<String> = (0..18).map(|number| format!("m{number:02}:1")).collect();
    let models: Vec<&str> = names.iter().map(String::as_str).collect();
    for model in &models {
        cluster.register(model, 2.0);
    }
    cluster.run_until("all serve", LIMIT, |c| serve(c, &models) && c.is_healthy());
    let mut sizes: Vec<usize> = workers(&cluster).iter().map(BTreeSet::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [2, 16]);
}
