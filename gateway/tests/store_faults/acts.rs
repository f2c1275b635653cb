//! Everything that the store can be asked to change, in an order in which most need those before them.

use std::{collections::BTreeMap, time::Duration};

use packhorse_api::{AuditActor, KeyView, Scope, events::EventKind};
use packhorse_cluster::{
    ArtifactDigest, Datatype, Dim, Generation, MinReplicas, ModelId, ModelName, ModelSpec,
    NodeName, Priority, ProfileTable, Program, RateMode, RequestsPerSecond, Scheduling, Split,
    Sticky, TensorSpec,
};
use packhorse_contention::PairTable;
use packhorse_control::record::{Forecast, NodeRecord, PlanRecord, Settings, SplitRecord};
use packhorse_estimator::OperatorGraph;
use packhorse_gateway::{
    audit::Act,
    keys::{KeyHash, KeyRecord},
    store::{InsertModelError, Store, StoreError, StoredEvent},
};
use packhorse_kernels::KernelTable;

/// The number of acts.
pub(crate) const ACTS: usize = 31;

/// The reason why an act was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not stored.
    NotStored,
    /// It is not stored, but may be found after a restart if nothing was stored after it.
    Uncertain,
}

/// Carries out an act by its number.
pub(crate) async fn carry_out(act: usize, store: &Store) -> Result<(), Refused> {
    let admin = &store.acting(Act::new(actor(), "model.register", &act));
    let done = match act {
        0 => store.insert_artifact(digest(2), 77).await.map(drop),
        1 => return insert_model(admin, "m:2", 2).await,
        2 => admin.insert_key(&key("k2", 1)).await,
        3 => admin.update_key(&key("k1", 7)).await,
        4 => admin.update_models(&[spec("m:1", 1, 9.0)]).await,
        5 => store.upsert_node(&node("n2", Scheduling::Open)).await,
        6 => store.begin_epoch().await.map(drop),
        7 => store.insert_events(&events(10..14, 40), 0).await,
        8 => {
            let profiles = profiles();
            let kernels = KernelTable::default();
            store.upsert_profiles(&profiles, &kernels).await
        }
        9 => store.insert_plan(&plan(2), None).await,
        10 => admin.upsert_split(&split()).await,
        11 => {
            let settings = Settings {
                policy: Some("first-fit".to_owned()),
                ..Settings::default()
            };
            admin.update_settings(&settings).await
        }
        12 => admin.set_node_token(&name("n1"), [3; 32]).await,
        13 => store.fail_model(&model("m:2"), "it is broken").await,
        14 => store.set_key_use("k1", 1234).await,
        15 => {
            let kind = "T4".parse().expect("a kind");
            admin.upsert_pairs(&kind, &PairTable::default()).await
        }
        16 => store.set_operators(&model("m:1"), &operators()).await,
        17 => admin.schedule_node(&node("n2", Scheduling::Cordoned)).await,
        // Several pages, some of which follow each other.
        18 => store.insert_events(&events(14..17, 9_000), 11).await,
        19 => admin.delete_key("k1").await,
        20 => {
            admin
                .delete_models(&[model("m:1")], Some(&spec("m:2", 2, 3.0)))
                .await
        }
        21 => admin.delete_node(&name("n2")).await,
        22 => store.delete_node_token(&name("n1")).await,
        23 => store.insert_artifact(digest(3), 78).await.map(drop),
        24 => return insert_model(admin, "m:3", 3).await,
        25 => {
            let deleted = store.delete_unused_artifact(digest(9), i64::MAX).await;
            deleted.map(drop)
        }
        26 => store.begin_epoch_at(50).await,
        27 => admin.insert_key(&key("k3", 3)).await,
        28 => store.insert_plan(&plan(3), None).await,
        29 => store.insert_events(&events(17..18, 100), 14).await,
        30 => store.set_needs(&needs()).await,
        _ => unreachable!("there are {ACTS} acts"),
    };
    done.map_err(|error| refused(&error))
}

/// Stores what a cluster has before the acts.
pub(crate) async fn furnish(store: &Store) -> Result<(), StoreError> {
    store.cluster_id().await?;
    store.begin_epoch().await?;
    store.insert_artifact(digest(1), 76).await?;
    store.insert_artifact(digest(9), 76).await?;
    store
        .insert_model(&spec("m:1", 1, 5.0))
        .await
        .map_err(|e| match e {
            InsertModelError::Store(e) => e,
            _ => unreachable!("the model is new, and its file is stored"),
        })?;
    store.insert_key(&key("k1", 1)).await?;
    store.upsert_node(&node("n1", Scheduling::Open)).await?;
    store.insert_plan(&plan(1), None).await
}

fn refused(error: &StoreError) -> Refused {
    match error {
        StoreError::Unavailable(_) => Refused::Uncertain,
        _ => Refused::NotStored,
    }
}

async fn insert_model(store: &Store, id: &str, artifact: u8) -> Result<(), Refused> {
    let inserted = store.insert_model(&spec(id, artifact, 5.0)).await;
    inserted.map_err(|error| match error {
        InsertModelError::Store(error) => refused(&error),
        InsertModelError::Exists | InsertModelError::UnknownArtifact => Refused::NotStored,
    })
}

fn actor() -> AuditActor {
    AuditActor {
        name: "admin".to_owned(),
        key_id: None,
        session: false,
        address: None,
    }
}

fn digest(byte: u8) -> ArtifactDigest {
    ArtifactDigest::from_sha256([byte; 32])
}

fn model(id: &str) -> ModelId {
    id.parse().expect("a model")
}

fn name(node: &str) -> NodeName {
    node.parse().expect("a node")
}

fn rate(rps: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(rps).expect("a rate")
}

fn spec(id: &str, artifact: u8, rps: f64) -> ModelSpec {
    let tensor = |name: &str| TensorSpec::new(name, Datatype::Fp32, vec![Dim::Any, Dim::Fixed(3)]);
    ModelSpec {
        program: Program {
            model: model(id),
            artifact: digest(artifact),
            max_batch_size: 16,
            inputs: vec![tensor("a")],
            outputs: vec![tensor("b")],
        },
        slo: Duration::from_millis(100),
        rate: Some(rate(rps)),
        rate_mode: RateMode::Measured,
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
        queue_limit: None,
        max_cold_wait: None,
        cache: false,
        variant: None,
        processing: std::sync::Arc::default(),
    }
}

fn key(id: &str, hash: u8) -> KeyRecord {
    KeyRecord {
        view: KeyView {
            id: id.to_owned(),
            name: format!("key {id}"),
            scopes: vec![Scope::Read],
            created_at_ms: 1,
            expires_at_ms: None,
            rate_rps: None,
            max_in_flight: None,
            model_limits: Vec::new(),
            last_used_at_ms: None,
        },
        hash: KeyHash([hash; 32]),
        previous: None,
    }
}

fn node(node: &str, scheduling: Scheduling) -> NodeRecord {
    NodeRecord {
        name: name(node),
        agent_version: "0.1.0".to_owned(),
        devices: Vec::new(),
        scheduling,
    }
}

fn events(ids: std::ops::Range<u64>, bytes: usize) -> Vec<StoredEvent> {
    ids.map(|id| StoredEvent {
        id,
        kind: EventKind::Plan,
        body: "x".repeat(bytes),
    })
    .collect()
}

fn profiles() -> ProfileTable {
    let header = ProfileTable::CSV_HEADER;
    let csv = format!("{header}\nm:1,T4,1,100,7.5,8,100,10,,50\n");
    ProfileTable::from_csv(&csv).expect("profiles")
}

fn operators() -> OperatorGraph {
    let operator = r#"{"name":"mm","count":1,"operations":[0,1],"parameter_bytes":0,"read_bytes":[0,1],"written_bytes":[0,1],"elements":[0,1]}"#;
    let operators = format!(
        r#"{{"parameters":1,"parameter_bytes":4,"activation_bytes":[0,4],"operators":[{operator}]}}"#
    );
    OperatorGraph::from_json(&operators).expect("operators")
}

fn plan(generation: u64) -> PlanRecord {
    PlanRecord {
        generation: Generation(generation),
        policy: "first-fit".to_owned(),
        reason: "a node joined".to_owned(),
        solve_ms: 1.5,
        created_ms: 1,
        replicas: Vec::new(),
        device_kinds: [].into(),
        forecasts: vec![Forecast {
            model: model("m:1"),
            rate: rate(5.0),
            goodput: rate(4.5),
            shortfall: None,
        }],
    }
}

fn needs() -> BTreeMap<ModelName, RequestsPerSecond> {
    BTreeMap::from([("m".parse().expect("a name"), RequestsPerSecond::ONE)])
}

fn split() -> SplitRecord {
    SplitRecord {
        name: "m".parse().expect("a name"),
        split: Some(Split::all_to(1.try_into().expect("a version"))),
        previous: None,
        sticky: Sticky::RequestId,
        stable: None,
        rejected: None,
    }
}
