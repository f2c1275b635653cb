use packhorse_cluster::{Device, DeviceKind, MinReplicas, Priority, ProfileTable};

use super::*;

const MIB: u64 = 1 << 20;

fn rps(rate: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(rate).unwrap()
}

fn model(name: &str, rate: f64, slo_ms: u64, max_batch_size: u32) -> DemandedModel {
    DemandedModel {
        id: name.parse().unwrap(),
        rate: rps(rate),
        need: None,
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
        slo: Duration::from_millis(slo_ms),
        max_batch_size,
        payload: ByteCount::new(100),
        load_time: Duration::from_secs(2),
        latency_scale: 1.0,
        weights: None,
    }
}

/// A forecast without a reason.
fn forecast(goodput: f64) -> ModelForecast {
    ModelForecast {
        goodput: rps(goodput),
        latency: None,
        shortfall: None,
    }
}

/// A problem with the models x, a, b, c on two devices. Each takes 100 MiB and 4 MiB for each row; b is the slowest.
fn problem() -> Problem {
    let kind: DeviceKind = "T4".parse().unwrap();
    let mut profiles = ProfileTable::default();
    for (name, ms) in [("x", 1.0), ("a", 2.0), ("b", 3.0), ("c", 2.0)] {
        let rows = [1_u32, 8].map(|batch_size| ProfileRow {
            batch_size,
            latency: Duration::from_secs_f64(ms * 1e-3 * f64::from(batch_size)),
            latency_p99: None,
            memory: Some(ByteCount::new((100 + 4 * u64::from(batch_size)) * MIB)),
            compute_share: packhorse_cluster::ComputeShare::WHOLE,
            achieved_occupancy: None,
            mean_occupancy: None,
            sm_utilization: None,
        });
        let profile = Profile::new(rows.to_vec()).unwrap();
        profiles.insert(name.parse().unwrap(), kind.clone(), profile);
    }
    let device = Device {
        kind,
        memory: ByteCount::new(1000 * MIB),
        multiprocessors: None,
        node: "n".parse().unwrap(),
        cost_per_hour: None,
        pool: None,
    };
    Problem {
        devices: vec![device.clone(), device],
        models: vec![
            model("x", 5.0, 100, 8),
            model("a", 10.0, 50, 8),
            model("b", 20.0, 60, 4),
            model("c", 30.0, 70, 8),
        ],
        profiles,
        ..Problem::default()
    }
}

/// The backbone of a, b and c, whose heads have 1, 2 and 3 MiB.
fn backbone() -> Backbone {
    let members = ["a", "b", "c"].into_iter().zip(1_u8..);
    Backbone {
        members: members
            .map(|(name, number)| BackboneMember {
                model: name.parse().unwrap(),
                artifact: ArtifactDigest::from_sha256([number; 32]),
                own: ByteCount::new(u64::from(number) * MIB),
            })
            .collect(),
    }
}

#[test]
fn models_of_a_backbone_are_one_model_with_the_rate_of_all_and_the_strictest_slo() {
    let (problem, backbones) = (problem(), [backbone()]);
    let merged = MergedProblem::new(&problem, &backbones).unwrap();
    let [x, all] = &merged.problem().models[..] else {
        panic!("{:?}", merged.problem().models)
    };
    assert_eq!(x, &problem.models[0]);
    // It is planned as the slowest of them.
    assert_eq!(all.id, "b".parse().unwrap());
    assert_eq!((all.rate, all.max_batch_size), (rps(60.0), 4));
    assert_eq!(all.slo, Duration::from_millis(50));
    assert_eq!(all.load_time, Duration::from_secs(6));
    let profile = merged
        .problem()
        .profile(ModelIndex(1), DeviceIndex(0))
        .unwrap();
    assert_eq!(profile.latency(4), Duration::from_millis(12));
    // The heads of a and c come on top of b.
    let memory = (100 + 4 * 4 + 1 + 3) * MIB;
    assert_eq!(profile.memory(4), Some(ByteCount::new(memory)));
    merged.problem().validate().unwrap();
}

#[test]
fn a_replica_of_the_merged_model_becomes_one_of_each_which_share_memory_and_worker() {
    let (problem, backbones) = (problem(), [backbone()]);
    let merged = MergedProblem::new(&problem, &backbones).unwrap();
    let replica = |model, device| PlannedReplica::new(ModelIndex(model), DeviceIndex(device), 4);
    let planned = vec![replica(0, 0), replica(1, 0), replica(1, 1), replica(1, 1)];
    let plan = merged.expand(Plan {
        policy: "test",
        replicas: planned.clone(),
        models: vec![forecast(5.0), forecast(30.0)],
    });
    let goodput: Vec<f64> = plan.models.iter().map(|f| f.goodput.get()).collect();
    assert_eq!(goodput, [5.0, 5.0, 10.0, 15.0]);
    let places: Vec<(usize, usize)> = plan
        .replicas
        .iter()
        .map(|r| (r.model.0, r.device.0))
        .collect();
    let of_model = |model| [(model, 0), (model, 1), (model, 1)];
    assert_eq!(
        places,
        [&[(0, 0)][..], &of_model(1), &of_model(2), &of_model(3)].concat()
    );
    let workers: BTreeSet<_> = plan
        .replicas
        .iter()
        .filter_map(|r| Some((r.device, r.backbone?)))
        .collect();
    assert_eq!(workers.len(), 3);
    let on_first = plan
        .replicas
        .iter()
        .filter(|r| r.device.0 == 0 && r.backbone.is_some());
    let memory: Vec<u64> = on_first.map(|r| r.memory.unwrap().as_u64() / MIB).collect();
    assert_eq!(memory, [120, 0, 0]);
    assert_eq!(plan.violations(&problem), []);
    // Each worker is one replica again where the plan is the current one.
    assert_eq!(merged.collapse(&plan.replicas), planned);
}

#[test]
fn a_worker_that_has_a_device_for_itself_takes_no_turns() {
    let (problem, backbones) = (problem(), [backbone()]);
    let merged = MergedProblem::new(&problem, &backbones).unwrap();
    let cycle = Some(Duration::from_millis(20));
    let in_turn = |model, device| PlannedReplica {
        duty_cycle: cycle,
        ..PlannedReplica::new(ModelIndex(model), DeviceIndex(device), 4)
    };
    let plan = merged.expand(Plan {
        policy: "test",
        replicas: vec![in_turn(0, 0), in_turn(1, 0), in_turn(1, 1)],
        models: vec![forecast(0.0); 2],
    });
    for replica in plan.replicas {
        let expected = cycle.filter(|_| replica.device == DeviceIndex(0));
        assert_eq!(replica.duty_cycle, expected, "{replica:?}");
    }
}

#[test]
fn compute_shares_and_memory_of_a_shared_worker_count_once() {
    let (mut problem, backbones) = (problem(), [backbone()]);
    let share = packhorse_cluster::ComputeShare::new(60.0).unwrap();
    let plan = |problem: &Problem| {
        let merged = MergedProblem::new(problem, &backbones).unwrap();
        let replica = PlannedReplica {
            compute_share: Some(share),
            ..PlannedReplica::new(ModelIndex(1), DeviceIndex(0), 4)
        };
        merged.expand(Plan {
            policy: "test",
            replicas: vec![replica],
            models: vec![forecast(0.0); 2],
        })
    };
    assert_eq!(plan(&problem).violations(&problem), []);
    // 120 MiB are needed.
    problem.devices[0].memory = ByteCount::new(119 * MIB);
    assert_eq!(plan(&problem).violations(&problem).len(), 1);
}

#[test]
fn a_backbone_of_which_one_model_is_planned_merges_nothing() {
    let (mut problem, backbones) = (problem(), [backbone()]);
    problem.models.truncate(2);
    assert!(MergedProblem::new(&problem, &backbones).is_none());
    assert!(MergedProblem::new(&problem, &[]).is_none());
}

/// Says which models are planned as one, by the names of the slowest, and the artifacts and the memory of each such group.
fn merged_models(problem: &Problem) -> Vec<(String, usize)> {
    let backbones = [backbone()];
    let merged = MergedProblem::new(problem, &backbones).unwrap();
    let models = merged.problem().models.iter().zip(&merged.members);
    models
        .map(|(model, members)| (model.id.to_string(), members.len()))
        .collect()
}

#[test]
fn a_model_without_a_profile_takes_nobody_down() {
    let mut problem = problem();
    problem
        .profiles
        .remove(&"b".parse().unwrap(), &"T4".parse().unwrap());
    let apart = [("x:1", 1), ("a:1", 2), ("b:1", 1)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(merged_models(&problem), apart);
    let backbones = [backbone()];
    let merged = MergedProblem::new(&problem, &backbones).unwrap();
    let profile = merged
        .problem()
        .profile(ModelIndex(1), DeviceIndex(0))
        .unwrap();
    // The head of b, of 2 MiB, is in no worker of the others.
    let memory = (100 + 4 * 4 + 3) * MIB;
    assert_eq!(profile.memory(4), Some(ByteCount::new(memory)));
    let replica = |model, device| PlannedReplica::new(ModelIndex(model), DeviceIndex(device), 4);
    let plan = merged.expand(Plan {
        policy: "test",
        replicas: vec![replica(1, 0)],
        models: vec![forecast(0.0); 3],
    });
    let planned: Vec<usize> = plan.replicas.iter().map(|r| r.model.0).collect();
    assert_eq!(planned, [1, 3]);
}

#[test]
fn models_with_profiles_on_other_kinds_of_device_are_planned_apart() {
    let mut problem = problem();
    let profile = problem
        .profiles
        .get(&"a".parse().unwrap(), &"T4".parse().unwrap());
    let profile = profile.unwrap().clone();
    let v100: DeviceKind = "V100".parse().unwrap();
    for name in ["a", "c"] {
        problem
            .profiles
            .insert(name.parse().unwrap(), v100.clone(), profile.clone());
    }
    let apart = [("x:1", 1), ("a:1", 2), ("b:1", 1)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(merged_models(&problem), apart);
}
