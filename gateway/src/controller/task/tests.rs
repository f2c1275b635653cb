//! The recorded history of a simulated cluster, replayed by the gateway's driver with its store and its solver. Both drivers must find
//! the same plans.

use std::{fs, path::Path};

use packhorse_cluster::{Discipline, Generation, Problem, Replica};
use packhorse_control::{
    Config,
    record::{PlanRecord, StoredCluster},
};
use packhorse_placement::{Budget, PlanningOptions, PolicyEntry};
use packhorse_simulator::{PlanReport, Recorded, Replanning, Scenario, simulate_replanning};

use super::*;
use crate::driver::DataPlaneConfig;

/// The time between two plans. Before it has passed, a simulation answers with the plan that it began with.
const PERIOD: Duration = Duration::from_secs(2);

/// The history of a simulated control plane.
struct History {
    config: Config,
    stored: StoredCluster,
    /// The events of the controller, but for the answers of the store, and of the policy after the first period.
    events: Vec<(Time, Event)>,
    /// The plans that it adopted.
    plans: Vec<AdoptedPlan>,
}

type AdoptedPlan = (Generation, Vec<Replica>);

fn adopted(plan: &PlanRecord) -> AdoptedPlan {
    let mut replicas = plan.replicas.clone();
    for replica in &mut replicas {
        // The store does not keep it, because it follows from the profile.
        replica.spec.memory = None;
    }
    (plan.generation, replicas)
}

/// Returns true if the history contains the policy's answer.
fn is_answered(now: Time) -> bool {
    now < Time::ZERO + PERIOD
}

/// Reads the scenario in which the load moves from one model to the other.
/// On three devices `goodput` has a first plan that suffices for the whole evening.
fn evening() -> Scenario {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/ramp");
    let read = |name: &str| fs::read_to_string(folder.join(name));
    let text = read("evening.toml").unwrap();
    let text = text.replace("count = 3", "count = 2");
    Scenario::parse(&text, &mut |name| read(name).map_err(|e| e.to_string())).unwrap()
}

impl History {
    /// Simulates the scenario with a new plan in every period.
    fn record(policy: &PolicyEntry) -> Self {
        let scenario = evening();
        let options = PlanningOptions::default();
        let place =
            |problem: &Problem| policy.place_with(problem, &options, &mut Budget::unlimited());
        let first = place(&scenario.problem).unwrap();
        let mut started = None;
        let mut events = Vec::new();
        let mut plans = Vec::new();
        let end = Time::ZERO + scenario.simulation.warmup + scenario.simulation.window;
        let mut record = |recorded: Recorded<'_>| match recorded {
            Recorded::Started(config, stored) => started = Some((config.clone(), stored.clone())),
            Recorded::Handled(_, Event::Stored(..)) => {}
            Recorded::Handled(now, Event::Solved(..)) if !is_answered(now) => {}
            Recorded::Handled(now, _) if now >= end => {}
            Recorded::Handled(now, event) => events.push((now, event.clone())),
            Recorded::Adopted(plan) => plans.push(adopted(plan)),
        };
        let mut replan = |problem: &Problem| place(problem).ok();
        let estimate = Some(packhorse_placement::estimate as _);
        let replanning = Replanning {
            recorder: Some(&mut record),
            ..Replanning::new(PERIOD, estimate, &mut replan)
        };
        let report = PlanReport::from_replicas(&scenario, &first.replicas);
        let (replicas, deadline) = (&first.replicas, Discipline::Deadline);
        let progress = &mut |_| {};
        simulate_replanning(
            &scenario, report, replicas, deadline, 1, replanning, progress,
        )
        .unwrap();
        let (config, stored) = started.unwrap();
        Self {
            config: Config {
                default_policy: policy.name.to_owned(),
                ..config
            },
            stored,
            events,
            plans,
        }
    }

    /// Replays the history. Returns the stored plans.
    async fn replay(self) -> Vec<AdoptedPlan> {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("packhorse.db"))
            .await
            .unwrap();
        let events = EventLog::open(store.clone(), &Tasks::default())
            .await
            .unwrap();
        let (data_plane, _links) = DataPlane::spawn(DataPlaneConfig::default()).unwrap();
        let config = ControllerConfig {
            lease: self.config.lease,
            profile_time_limit: self.config.profile_time_limit,
            shared_backbones: self.config.shared_backbones,
            solve_budget: Duration::from_hours(1),
            node_start: Duration::ZERO,
            max_batch_wait: Duration::ZERO,
            policy: None,
            discipline: None,
        };
        let findings = Findings::new(events.clone());
        let controller = Controller::new(Time::ZERO, self.config, self.stored);
        let mut task = Task::new(
            controller,
            &config,
            store.clone(),
            data_plane,
            events,
            findings,
            &Tasks::default(),
        );
        let mut now = Time::ZERO;
        for (at, event) in self.events {
            task.replay_until(&mut now, at).await;
            if let Event::Sampled(_) | Event::Solved(..) = event {
                // An answer comes after its question.
                task.carry_out_and_wait(now).await;
            }
            task.handle(now, event);
        }
        task.carry_out_and_wait(now).await;
        let mut plans = store.plans(None, u32::MAX).await.unwrap();
        plans.reverse();
        plans.iter().map(adopted).collect()
    }
}

impl Task {
    /// Lets pass the time until `at`.
    async fn replay_until(&mut self, now: &mut Time, at: Time) {
        loop {
            self.carry_out_and_wait(*now).await;
            let next = self.controller.poll_timeout();
            *now = next.min(at);
            if next >= at {
                return;
            }
        }
    }

    /// Carries out effects and takes their outcomes, until there is none. The counts of the data plane are in the history.
    async fn carry_out_and_wait(&mut self, now: Time) {
        loop {
            let mut outcomes = 0;
            let mut served = Vec::new();
            while let Some(effect) = self.controller.poll(now) {
                match effect {
                    Effect::Sample => continue,
                    Effect::Solve(..) if is_answered(now) => continue,
                    Effect::Store(..) | Effect::Solve(..) => outcomes += 1,
                    _ => {}
                }
                self.carry_out(effect, &mut served);
            }
            if outcomes == 0 {
                return;
            }
            for _ in 0..outcomes {
                let outcome = self.received_outcomes.recv().await.unwrap();
                self.take_outcome(now, outcome);
            }
        }
    }
}

#[tokio::test]
async fn the_gateway_finds_the_plans_of_a_simulated_cluster_in_its_history() {
    for name in ["nexus", "goodput"] {
        let policy = packhorse_placement::policy(name).unwrap();
        let history = History::record(policy);
        let plans = history.plans.clone();
        assert!(
            plans.len() >= 2,
            "{name} adopted only {} plans",
            plans.len()
        );
        assert_eq!(plans, history.replay().await, "{name}");
    }
}
