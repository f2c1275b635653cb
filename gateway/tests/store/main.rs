//! The store on both engines: rows are read back as they were written, also after the database is opened again, and constraints hold.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

#[path = "../store_faults/acts.rs"]
mod acts;
mod failover;
mod hold;
mod migrate;
mod place;
mod postgres_server;
mod proxy;
mod rows;
mod tables;
mod tls;

use std::{collections::BTreeMap, path::Path, time::Duration};

use packhorse_cluster::{
    ArtifactDigest, ByteCount, ComputeMetric, Datatype, DeviceReport, Dim, Discipline, Generation,
    MinReplicas, ModelId, ModelName, ModelSpec, Padding, Percent, PolicyOptions, Priority,
    ProfileTable, Program, RateMode, Replica, ReplicaId, ReplicaPhase, ReplicaSpec,
    RequestsPerSecond, Scheduling, TensorSpec, VariantOf,
};
use packhorse_control::MeasurementKey;
use packhorse_control::record::{Forecast, NodeRecord, PlanOutcome, PlanRecord, Settings};
use packhorse_estimator::OperatorGraph;
use packhorse_gateway::store::{ArtifactFiles, InsertModelError, Store};
use packhorse_kernels::KernelTable;

use place::Place;

/// Makes a test of each engine of these.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name(super::Place::sqlite()).await;
            })*
        }

        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                if let Some(place) = super::Place::postgres().await {
                    super::$name(place).await;
                }
            })*
        }
    };
}

on_both_engines![
    a_number_may_be_absent_in_one_row_and_there_in_the_next,
    everything_is_read_back_as_it_was_written_also_by_another_opening,
    measurements_are_kept_without_their_model_and_replaced_by_newer_ones,
    every_start_has_a_greater_epoch,
    a_store_keeps_its_identity_and_its_raised_epochs,
    a_file_is_never_deleted_under_a_registration,
    plans_are_listed_without_what_is_large_in_them,
    a_model_needs_its_artifact_and_a_version_of_its_own,
    models_change_fail_and_go_with_their_profiles,
    a_store_from_before_families_gets_models_that_are_in_none,
    a_store_from_before_reservations_keeps_its_rates_and_takes_models_without,
    a_model_knows_which_plans_were_made_before_it,
    the_newest_plans_are_kept_and_listed_newest_first,
    settings_change_one_by_one,
    needs_are_replaced_together,
    writers_wait_for_each_other,
];

async fn open(folder: &Path) -> Store {
    Store::open(&folder.join("packhorse.db")).await.unwrap()
}

fn digest(byte: u8) -> ArtifactDigest {
    ArtifactDigest::from_sha256([byte; 32])
}

fn spec(model: &str, artifact: ArtifactDigest) -> ModelSpec {
    let tensor = |name: &str, pad| TensorSpec {
        pad,
        ..TensorSpec::new(
            name,
            Datatype::Int64,
            vec![Dim::Any, Dim::Any, Dim::Fixed(3)],
        )
    };
    let pad = Padding {
        axis: 1,
        value: 0.5,
    };
    ModelSpec {
        program: Program {
            model: model.parse().unwrap(),
            artifact,
            max_batch_size: 16,
            inputs: vec![tensor("a", Some(pad)), tensor("b", None)],
            outputs: vec![tensor("c", None)],
        },
        slo: Duration::from_micros(150_500),
        rate: RequestsPerSecond::new(12.25).ok(),
        rate_mode: RateMode::Measured,
        priority: Priority::new(8).unwrap(),
        min_replicas: MinReplicas::default(),
        queue_limit: Some(77),
        max_cold_wait: Some(Duration::from_millis(1500)),
        cache: true,
        variant: Some(variant(81.5)),
        processing: processing(),
    }
}

fn processing() -> std::sync::Arc<packhorse_cluster::Processing> {
    let declared = r#"{"preprocess": {"x": {"kind": "image", "resize": {"shortest": 256}, "crop": [224, 224], "std": [0.1, 0.2, 0.3]}},
        "postprocess": {"y": {"top_k": 2, "labels": ["cat", "dog"]}}}"#;
    serde_json::from_str::<packhorse_cluster::Processing>(declared)
        .unwrap()
        .into()
}

fn variant(accuracy: f64) -> VariantOf {
    VariantOf {
        family: "f".parse().unwrap(),
        accuracy: Percent::new(accuracy).unwrap(),
    }
}

fn plan(generation: u64) -> PlanRecord {
    let model: ModelId = "m:2".parse().unwrap();
    PlanRecord {
        generation: Generation(generation),
        policy: "first-fit".to_owned(),
        reason: "node n joined".to_owned(),
        solve_ms: 1.5,
        created_ms: 1_700_000_000_123,
        replicas: vec![Replica {
            id: ReplicaId {
                generation: Generation(1),
                number: 0,
            },
            spec: ReplicaSpec {
                compute_share: Some(12.5.try_into().unwrap()),
                duty_cycle: Some(Duration::from_micros(12_500)),
                ..ReplicaSpec::new(model.clone(), "n/sim0".parse().unwrap(), 8)
            },
            phase: ReplicaPhase::Planned,
            worker: None,
        }],
        device_kinds: [("n/sim0".parse().unwrap(), "T4".parse().unwrap())].into(),
        forecasts: vec![Forecast {
            model,
            rate: RequestsPerSecond::new(5.0).unwrap(),
            goodput: RequestsPerSecond::new(4.5).unwrap(),
            shortfall: Some("half a request is missing".to_owned()),
        }],
    }
}

async fn everything_is_read_back_as_it_was_written_also_by_another_opening(place: Place) {
    let store = place.open().await;
    assert!(store.insert_artifact(digest(1), 77).await.unwrap());
    assert!(!store.insert_artifact(digest(1), 77).await.unwrap());
    let spec = spec("m:2", digest(1));
    store.insert_model(&spec).await.unwrap();
    let header = ProfileTable::CSV_HEADER;
    let csv = format!("{header}\nm:2,T4,1,100,7.5,8,100,10,,50\nm:2,cpu-x,1,100,3,,,,,\n");
    let profiles = ProfileTable::from_csv(&csv).unwrap();
    store
        .upsert_profiles(&profiles, &KernelTable::default())
        .await
        .unwrap();
    let node = NodeRecord {
        name: "n".parse().unwrap(),
        agent_version: "0.1.0".to_owned(),
        devices: vec![DeviceReport {
            name: "sim0".to_owned(),
            kind: "T4".parse().unwrap(),
            memory_bytes: ByteCount::new(1 << 40),
            multiprocessors: None,
            description: "Ünïcode \"quoted\"".to_owned(),
            pool: None,
        }],
        scheduling: Scheduling::Draining,
    };
    let reported = NodeRecord {
        scheduling: Scheduling::Open,
        ..node.clone()
    };
    let scheduled = NodeRecord {
        devices: Vec::new(),
        ..node.clone()
    };
    // Each write leaves to the other what is the other's.
    store.schedule_node(&scheduled).await.unwrap();
    store.upsert_node(&reported).await.unwrap();
    store.schedule_node(&scheduled).await.unwrap();
    store.insert_plan(&plan(1), None).await.unwrap();
    store.close().await;

    let store = place.open().await;
    assert_eq!(store.artifact(digest(1)).await.unwrap(), Some(77));
    assert_eq!(store.artifact(digest(2)).await.unwrap(), None);
    assert_eq!(store.artifacts().await.unwrap(), [(digest(1), 77)]);
    let models = store.models().await.unwrap();
    assert_eq!(models.len(), 1);
    assert_eq!((&models[0].spec, &models[0].failure), (&spec, &None));
    assert_eq!(store.profiles().await.unwrap(), profiles);
    assert_eq!(store.nodes().await.unwrap(), [node]);
    assert_eq!(store.newest_plan().await.unwrap(), Some(plan(1)));
    assert_eq!(store.plan(Generation(1)).await.unwrap(), Some(plan(1)));
    assert_eq!(store.plan(Generation(u64::MAX)).await.unwrap(), None);
}

async fn measurements_are_kept_without_their_model_and_replaced_by_newer_ones(place: Place) {
    let store = place.open().await;
    let key = |signature: &str| MeasurementKey {
        artifact: digest(1),
        device_kind: "T4".parse().unwrap(),
        signature: signature.to_owned(),
        libtorch: "2.11.0".to_owned(),
    };
    let header = ProfileTable::CSV_HEADER;
    let table = |ms: u32| {
        let csv = format!("{header},input_shapes\nm:2,T4,1,100,{ms},8,100,10,,50,-1x128\n");
        ProfileTable::from_csv(&csv).unwrap()
    };
    let kernels = KernelTable::default();
    for (signature, ms) in [("a", 7), ("b", 8), ("a", 9)] {
        let (key, table) = (key(signature), table(ms));
        let stored = store.upsert_measurement(&key, &table, &kernels);
        stored.await.unwrap();
    }
    assert_eq!(store.profiles().await.unwrap(), table(9));
    let model: ModelId = "m:2".parse().unwrap();
    store.delete_models(&[model], None).await.unwrap();
    store.delete_measurement(&key("b")).await.unwrap();
    store.close().await;

    let store = place.open().await;
    assert!(store.profiles().await.unwrap().is_empty());
    let table = table(9);
    let (_, _, profile) = table.iter().next().unwrap();
    assert_eq!(
        store.measurements().await.unwrap(),
        [(key("a"), profile.clone())]
    );
}

#[tokio::test]
async fn a_file_that_is_no_database_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("packhorse.db"), [7; 5000]).unwrap();
    let error = Store::open(&folder.path().join("packhorse.db")).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("packhorse.db"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("file is not a database"), "{source}");
}

async fn every_start_has_a_greater_epoch(place: Place) {
    for expected in 1..=3 {
        let store = place.open().await;
        assert_eq!(store.begin_epoch().await.unwrap(), expected);
        store.close().await;
    }
}

async fn a_store_keeps_its_identity_and_its_raised_epochs(place: Place) {
    let store = place.open().await;
    let id = store.cluster_id().await.unwrap();
    assert_eq!(store.begin_epoch().await.unwrap(), 1);
    store.begin_epoch_at(41).await.unwrap();
    assert!(store.begin_epoch_at(41).await.is_err());
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.cluster_id().await.unwrap(), id);
    assert_eq!(store.begin_epoch().await.unwrap(), 42);
    let other = place.another().await;
    assert_ne!(other.open().await.cluster_id().await.unwrap(), id);
}

async fn a_file_is_never_deleted_under_a_registration(place: Place) {
    let store = place.open().await;
    let files = place.folder().join("artifacts");
    let limit = ByteCount::new(1 << 20);
    let files = ArtifactFiles::open(files, Vec::new(), limit, store.clone())
        .await
        .unwrap();
    let (mut registered, mut refused) = (0, 0);
    for round in 0..60_u32 {
        let content = format!("the file of round {round}");
        let digest = files
            .receive(None, content.as_bytes())
            .await
            .unwrap()
            .digest;
        // Files may go as soon as they are stored: the worst time for a registration.
        let sweep = tokio::spawn({
            let files = files.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                files.delete_unused(Duration::ZERO).await.unwrap();
            }
        });
        let model = format!("m{round}:1");
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 80)).await;
        let inserted = store.insert_model(&spec(&model, digest)).await;
        sweep.await.unwrap();
        match inserted {
            Ok(()) => {
                registered += 1;
                let (_, bytes) = files.read(digest).await.unwrap();
                assert_eq!(bytes, content.len() as u64);
            }
            Err(InsertModelError::UnknownArtifact) => {
                refused += 1;
                assert!(files.read(digest).await.is_err());
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(registered + refused, 60);
}

async fn plans_are_listed_without_what_is_large_in_them(place: Place) {
    let store = place.open().await;
    let mut large = plan(2);
    large.forecasts = (0..40)
        .map(|number| Forecast {
            model: format!("unserved{number}:1").parse().unwrap(),
            ..plan(2).forecasts[0].clone()
        })
        .collect();
    for plan in [&plan(1), &large] {
        store.insert_plan(plan, None).await.unwrap();
    }
    let listed = store.plan_summaries(None, 10).await.unwrap();
    assert_eq!(listed.len(), 2);
    let totals = &listed[0].totals;
    assert_eq!(listed[0].generation, Generation(2));
    assert_eq!((totals.replicas, totals.models), (large.replicas.len(), 40));
    assert_eq!((totals.unserved_models, totals.unserved.len()), (40, 16));
    let before = store.plan_summaries(Some(Generation(2)), 10).await.unwrap();
    assert_eq!(before, listed[1..]);
    assert_eq!(store.plan_summaries(None, 1).await.unwrap(), listed[..1]);
    // The outcome of a plan comes with the one that replaces it.
    let outcome = PlanOutcome {
        seconds: 60.0,
        arrived: 600.0,
        predicted: 500.0,
        observed: 450.5,
    };
    store.insert_plan(&plan(3), Some(&outcome)).await.unwrap();
    let listed = store.plan_summaries(None, 10).await.unwrap();
    let outcomes = listed.iter().map(|plan| plan.outcome);
    assert!(outcomes.eq([None, Some(outcome), None]));
    store.close().await;

    // A store of 0.1.0 has no summaries; they are added when it is opened.
    place.carry_out(&["UPDATE plans SET summary = NULL"]).await;
    let store = place.open().await;
    assert_eq!(store.plan_summaries(None, 10).await.unwrap(), listed);
}

async fn a_number_may_be_absent_in_one_row_and_there_in_the_next(place: Place) {
    let store = place.open().await;
    store.insert_artifact(digest(1), 77).await.unwrap();
    // More than the connections that there are.
    for number in 0..40 {
        let mut model = spec(&format!("m{number}:1"), digest(1));
        model.rate = (number >= 20).then(|| RequestsPerSecond::new(2.5).unwrap());
        store.insert_model(&model).await.unwrap();
    }
}

async fn a_model_needs_its_artifact_and_a_version_of_its_own(place: Place) {
    let store = place.open().await;
    let missing = store.insert_model(&spec("m:1", digest(1))).await;
    assert!(matches!(missing, Err(InsertModelError::UnknownArtifact)));
    store.insert_artifact(digest(1), 1).await.unwrap();
    store.insert_model(&spec("m:1", digest(1))).await.unwrap();
    let twice = store.insert_model(&spec("m:1", digest(1))).await;
    assert!(matches!(twice, Err(InsertModelError::Exists)));
    store.insert_model(&spec("m:2", digest(1))).await.unwrap();
    assert_eq!(store.models().await.unwrap().len(), 2);
}

async fn models_change_fail_and_go_with_their_profiles(place: Place) {
    let store = place.open().await;
    store.insert_artifact(digest(1), 1).await.unwrap();
    let (m, n): (ModelId, ModelId) = ("m:1".parse().unwrap(), "n:1".parse().unwrap());
    for model in ["m:1", "n:1"] {
        store.insert_model(&spec(model, digest(1))).await.unwrap();
    }
    let csv = format!(
        "{}\nm:1,T4,1,,7,,,,,\nn:1,T4,1,,8,,,,,\n",
        ProfileTable::CSV_HEADER
    );
    let profiles = ProfileTable::from_csv(&csv).unwrap();
    store
        .upsert_profiles(&profiles, &KernelTable::default())
        .await
        .unwrap();
    let rate = RequestsPerSecond::new(9.0).ok();
    let slo = Duration::from_millis(33);
    let changed = ModelSpec {
        slo,
        rate,
        rate_mode: RateMode::Min,
        min_replicas: MinReplicas::default(),
        queue_limit: None,
        max_cold_wait: None,
        cache: false,
        variant: Some(variant(83.0)),
        ..spec("m:1", digest(1))
    };
    let models = [changed.clone(), spec("n:1", digest(1))];
    store.update_models(&models).await.unwrap();
    store.fail_model(&n, "it throws").await.unwrap();
    let operator = r#"{"name":"mm","count":1,"operations":[0,1],"parameter_bytes":0,"read_bytes":[0,1],"written_bytes":[0,1],"elements":[0,1]}"#;
    let operators = format!(
        r#"{{"parameters":1,"parameter_bytes":4,"activation_bytes":[0,4],"operators":[{operator}]}}"#
    );
    let operators = OperatorGraph::from_json(&operators).unwrap();
    store.set_operators(&n, &operators).await.unwrap();
    let models = store.models().await.unwrap();
    assert_eq!(models[0].spec, changed);
    assert_eq!(
        (&models[0].failure, &models[1].failure),
        (&None, &Some("it throws".to_owned()))
    );
    let stored = models.iter().map(|model| model.operators.as_deref());
    assert_eq!(stored.collect::<Vec<_>>(), [None, Some(&operators)]);

    let heir = ModelSpec {
        priority: Priority::new(9).unwrap(),
        min_replicas: MinReplicas::new(3).unwrap(),
        ..spec("n:1", digest(1))
    };
    let removed = std::slice::from_ref(&m);
    store.delete_models(removed, Some(&heir)).await.unwrap();
    let models = store.models().await.unwrap();
    assert_eq!(models.len(), 1);
    assert_eq!(models[0].spec, heir);
    let left: Vec<ModelId> = store
        .profiles()
        .await
        .unwrap()
        .iter()
        .map(|(m, ..)| m.clone())
        .collect();
    assert_eq!(left, [n]);
}

async fn a_store_from_before_families_gets_models_that_are_in_none(place: Place) {
    let store = place.open().await;
    store.insert_artifact(digest(1), 1).await.unwrap();
    store.insert_model(&spec("m:1", digest(1))).await.unwrap();
    drop(store);
    let statements = [
        "ALTER TABLE models DROP COLUMN family",
        "ALTER TABLE models DROP COLUMN accuracy_pct",
        "DELETE FROM _sqlx_migrations WHERE version = 13",
    ];
    place.carry_out(&statements).await;
    let store = place.open().await;
    let models = store.models().await.unwrap();
    let expected = ModelSpec {
        variant: None,
        ..spec("m:1", digest(1))
    };
    assert_eq!(models[0].spec, expected);
}

async fn a_store_from_before_reservations_keeps_its_rates_and_takes_models_without(place: Place) {
    let store = place.open().await;
    store.insert_artifact(digest(1), 1).await.unwrap();
    store.insert_model(&spec("m:1", digest(1))).await.unwrap();
    drop(store);
    let statements = [
        "ALTER TABLE models ADD COLUMN old_rps DOUBLE PRECISION NOT NULL DEFAULT 0",
        "UPDATE models SET old_rps = rate_rps",
        "ALTER TABLE models DROP COLUMN rate_rps",
        "ALTER TABLE models RENAME COLUMN old_rps TO rate_rps",
        "DELETE FROM _sqlx_migrations WHERE version = 15",
    ];
    place.carry_out(&statements).await;
    let store = place.open().await;
    let without = ModelSpec {
        rate: None,
        ..spec("n:1", digest(1))
    };
    store.insert_model(&without).await.unwrap();
    let models = store.models().await.unwrap();
    assert_eq!(models[0].spec, spec("m:1", digest(1)));
    assert_eq!(models[1].spec, without);
}

async fn a_model_knows_which_plans_were_made_before_it(place: Place) {
    let store = place.open().await;
    store.insert_artifact(digest(1), 1).await.unwrap();
    store.insert_model(&spec("a:1", digest(1))).await.unwrap();
    store.insert_plan(&plan(6), None).await.unwrap();
    store.insert_plan(&plan(7), None).await.unwrap();
    store.insert_model(&spec("b:1", digest(1))).await.unwrap();
    let after: Vec<Generation> = store
        .models()
        .await
        .unwrap()
        .iter()
        .map(|m| m.after_plan)
        .collect();
    assert_eq!(after, [Generation(0), Generation(7)]);
}

async fn the_newest_plans_are_kept_and_listed_newest_first(place: Place) {
    let store = place.open().await;
    let newest = Store::PLANS_KEPT + 3;
    for generation in [1, 2, 3, 4, newest] {
        store.insert_plan(&plan(generation), None).await.unwrap();
    }
    let generations =
        |plans: Vec<PlanRecord>| plans.iter().map(|p| p.generation.0).collect::<Vec<_>>();
    assert_eq!(
        generations(store.plans(None, 10).await.unwrap()),
        [newest, 4]
    );
    assert_eq!(
        generations(store.plans(Some(Generation(newest)), 10).await.unwrap()),
        [4]
    );
    assert_eq!(generations(store.plans(None, 1).await.unwrap()), [newest]);
    assert!(
        store.insert_plan(&plan(4), None).await.is_err(),
        "a generation is used once"
    );
    assert_eq!(store.newest_plan().await.unwrap(), Some(plan(newest)));
}

async fn settings_change_one_by_one(place: Place) {
    let store = place.open().await;
    assert_eq!(store.settings().await.unwrap(), Settings::default());
    let policy = Settings {
        policy: Some("exclusive".to_owned()),
        ..Settings::default()
    };
    store.update_settings(&policy).await.unwrap();
    let options = Settings {
        options: Some(PolicyOptions {
            compute_metric: Some(ComputeMetric::Mean),
            ..PolicyOptions::default()
        }),
        ..Settings::default()
    };
    store.update_settings(&options).await.unwrap();
    let discipline = Settings {
        discipline: Some(Discipline::Deadline),
        ..Settings::default()
    };
    store.update_settings(&discipline).await.unwrap();
    let all = Settings {
        policy: policy.policy,
        options: options.options,
        discipline: discipline.discipline,
    };
    assert_eq!(store.settings().await.unwrap(), all);
}

async fn needs_are_replaced_together(place: Place) {
    let store = place.open().await;
    assert_eq!(store.needs().await.unwrap(), BTreeMap::new());
    let needs = |needs: &[(&str, f64)]| -> BTreeMap<ModelName, RequestsPerSecond> {
        let rate = |rate: f64| RequestsPerSecond::new(rate).unwrap();
        let needs = needs.iter();
        needs
            .map(|(name, need)| (name.parse().unwrap(), rate(*need)))
            .collect()
    };
    for needs in [
        needs(&[("a", 2.5), ("b", 1e-3)]),
        needs(&[("b", 7.0), ("c", 0.0)]),
    ] {
        store.set_needs(&needs).await.unwrap();
        drop(store.settings().await.unwrap());
        assert_eq!(store.needs().await.unwrap(), needs);
    }
}

#[tokio::test]
async fn a_folder_may_be_called_anything() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("a b?c#d%20é");
    std::fs::create_dir(&odd).unwrap();
    let store = open(&odd).await;
    assert_eq!(store.begin_epoch().await.unwrap(), 1);
    assert!(odd.join("packhorse.db").exists());
}

async fn writers_wait_for_each_other(place: Place) {
    let store = place.open().await;
    let mut writers = tokio::task::JoinSet::new();
    for byte in 0..32 {
        let store = store.clone();
        writers.spawn(async move { store.insert_artifact(digest(byte), 1).await.unwrap() });
    }
    assert!(writers.join_all().await.into_iter().all(|new| new));
    assert_eq!(store.artifacts().await.unwrap().len(), 32);
}
