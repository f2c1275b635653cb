//! Plans of random fleets for random clusters, carried out by a cluster that does what the gateway does with each step.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::collections::{BTreeMap, BTreeSet};

use packhorse_api::{ModelChange, ModelRegistration, ModelView};
use packhorse_cluster::{ModelName, ModelVersion, Split};
use packhorse_fleet::{
    Change, Cluster, Comparison, DeclaredModel, DeclaredVersion, Fleet, Plan, Step, compare, plan,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn name(name: &str) -> ModelName {
    name.parse().unwrap()
}

fn version(number: u32) -> ModelVersion {
    ModelVersion::new(number).unwrap()
}

fn digest(seed: u32) -> String {
    format!("sha256:{seed:064x}")
}

/// A version as its files say it: name, version, artifact, signature and SLO, and these fields.
fn declared(model: &str, number: u32, program: u32, slo_ms: f64, more: &Value) -> DeclaredVersion {
    let mut spec = json!({
        "name": model, "version": number, "artifact": digest(program), "max_batch_size": 4, "slo_ms": slo_ms,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    });
    let fields = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    let said = spec.as_object().unwrap().keys().cloned().collect();
    let registration = serde_json::from_value(spec).unwrap();
    DeclaredVersion { registration, said }
}

/// A version as the gateway has it.
fn registered(new: &ModelRegistration) -> ModelView {
    let mut view = json!({
        "version": 1, "state": "ready", "reason": null, "artifact_bytes": 1, "profiled_on": [], "profiling": [], "replicas": [],
    });
    let Value::Object(fields) = serde_json::to_value(new).unwrap() else {
        panic!("it is an object");
    };
    view.as_object_mut().unwrap().extend(fields);
    serde_json::from_value(view).unwrap()
}

/// Sets the fields that a change has.
fn set(view: &mut ModelView, change: &ModelChange) {
    let mut fields = serde_json::to_value(&*view).unwrap();
    let Value::Object(changes) = serde_json::to_value(change).unwrap() else {
        panic!("it is an object");
    };
    fields.as_object_mut().unwrap().extend(changes);
    *view = serde_json::from_value(fields).unwrap();
    if view.family.is_none() {
        view.accuracy = None;
    }
}

/// Does what the gateway does with a step, and what a registration is followed by.
fn carry_out(fleet: &Fleet, cluster: &mut Cluster, step: &Step) {
    let before = cluster.clone();
    match &step.change {
        Change::Register(new) => {
            let mut new = ModelRegistration::clone(new);
            let number = new.version.unwrap();
            assert!(cluster.version(&new.name, number).is_none(), "it is new");
            let newest = cluster.versions(&new.name).max_by_key(|view| view.version);
            if let Some(newest) = newest {
                new.rate_rps = new.rate_rps.or(newest.rate_rps);
                new.rate = new.rate.or(Some(newest.rate));
                new.priority = new.priority.or(Some(newest.priority));
                new.min_replicas = new.min_replicas.or(Some(newest.min_replicas));
            }
            let mut view = registered(&new);
            let (split, sticky) = newest
                .map(|newest| (newest.split.clone(), newest.sticky))
                .unwrap_or_default();
            (view.split, view.sticky) = (split, sticky);
            cluster.models.push(view.clone());
            let declared = &fleet.models[&new.name].versions[&number];
            let is_newest = before.versions(&new.name).all(|of| of.version <= number);
            let Comparison::Change(steps) = compare(&view, declared, is_newest) else {
                panic!("it has the program that was registered");
            };
            for step in steps {
                carry_out(fleet, cluster, &step);
            }
        }
        Change::Replace(new) => {
            let there = cluster.models.iter_mut();
            let mut there = there.filter(|view| view.name == new.name);
            let view = there
                .find(|view| Some(view.version) == new.version)
                .unwrap();
            let (split, sticky) = (view.split.clone(), view.sticky);
            *view = registered(new);
            (view.split, view.sticky) = (split, sticky);
        }
        Change::Model(name, version, change) => {
            for view in &mut cluster.models {
                if view.name == *name && version.is_none_or(|of| of == view.version) {
                    set(view, change);
                }
            }
        }
        Change::Split(name, change) => {
            if let Some(Some(split)) = &change.split {
                for (version, _) in split.iter() {
                    assert!(
                        cluster.version(name, version).is_some(),
                        "{name}:{version} is there"
                    );
                }
            }
            for view in cluster.models.iter_mut().filter(|view| view.name == *name) {
                set(view, change);
            }
        }
        Change::Remove(name, version) => {
            let is_it = |view: &ModelView| {
                view.name == *name && version.is_none_or(|of| of == view.version)
            };
            for view in cluster.models.iter().filter(|view| is_it(view)) {
                assert!(version.is_none() || view.share_pct == 0, "nobody gets it");
            }
            // The version that becomes the newest inherits what belongs to the name.
            let newest = |cluster: &Cluster| {
                let newest = cluster.versions(name).max_by_key(|view| view.version);
                newest.cloned()
            };
            let removed = newest(cluster);
            cluster.models.retain(|view| !is_it(view));
            if let (Some(removed), Some(heir)) = (removed, newest(cluster))
                && removed.version > heir.version
            {
                let is_heir =
                    |view: &&mut ModelView| view.name == *name && view.version == heir.version;
                let heir = cluster.models.iter_mut().find(is_heir).unwrap();
                heir.rate_rps = removed.rate_rps;
                heir.rate = removed.rate;
                heir.priority = removed.priority;
                heir.min_replicas = removed.min_replicas;
            }
        }
        other => panic!("{other:?} is about no model"),
    }
}

/// Carries out a plan, and then the plans for what a change of the newest version brought up, until there are none.
fn apply(fleet: &Fleet, cluster: &mut Cluster, prune: bool) -> Plan {
    let first = plan(fleet, cluster, prune);
    for step in &first.steps {
        carry_out(fleet, cluster, step);
    }
    first
}

fn optional() -> impl Strategy<Value = Value> {
    let fields = (
        prop::option::of(prop_oneof![
            Just(Value::Null),
            (1..4u32).prop_map(Value::from)
        ]),
        prop::option::of(0..10u32),
        prop::option::of(1..4u32),
        prop::option::of(prop_oneof![
            Just(Value::Null),
            (1..4u32).prop_map(Value::from)
        ]),
        prop::option::of(any::<bool>()),
        prop::option::of(prop_oneof![Just("max"), Just("min"), Just("measured")]),
    );
    fields.prop_map(
        |(rate_rps, priority, min_replicas, queue_limit, cache, rate)| {
            let mut fields = Map::new();
            let mut put = |name: &str, value: Option<Value>| {
                fields.extend(value.map(|value| (name.to_owned(), value)));
            };
            put("rate_rps", rate_rps);
            put("priority", priority.map(Value::from));
            put("min_replicas", min_replicas.map(Value::from));
            put("queue_limit", queue_limit);
            put("cache", cache.map(Value::from));
            put("rate", rate.map(Value::from));
            Value::Object(fields)
        },
    )
}

/// The programs and objectives of a model's versions.
type Drawn = BTreeMap<u32, (u32, u32)>;

/// The versions of some models. The fields beside program and SLO are those of all versions of a model, as in a folder.
fn models() -> impl Strategy<Value = BTreeMap<ModelName, BTreeMap<ModelVersion, DeclaredVersion>>> {
    let versions = prop::collection::btree_map(1..4u32, (0..2u32, 1..3u32), 1..4);
    let model = (versions, optional());
    prop::collection::btree_map(prop::sample::select(&NAMES[..]), model, 0..5).prop_map(|models| {
        let model = |(of, (versions, more)): (&str, (Drawn, Value))| {
            let versions = versions.into_iter().map(|(number, (program, slo))| {
                let slo_ms = f64::from(slo) * 100.0;
                (
                    version(number),
                    declared(of, number, program, slo_ms, &more),
                )
            });
            (name(of), versions.collect())
        };
        models.into_iter().map(model).collect()
    })
}

fn fleets() -> impl Strategy<Value = Fleet> {
    let splits = prop::collection::btree_map(prop::sample::select(&NAMES[..]), 0..3u8, 0..3);
    (models(), splits).prop_map(|(models, splits)| {
        let mut fleet = Fleet::default();
        for (of, versions) in models {
            let split = splits.get(of.as_str()).map(|kind| {
                let first = *versions.keys().next().unwrap();
                let last = *versions.keys().next_back().unwrap();
                let split = match kind {
                    0 => None,
                    1 => Some(Split::all_to(first)),
                    _ if first == last => Some(Split::all_to(last)),
                    _ => Some(Split::new([(first, 40), (last, 60)].into()).unwrap()),
                };
                ModelChange {
                    split: Some(split),
                    ..ModelChange::default()
                }
            });
            fleet.models.insert(of, DeclaredModel { versions, split });
        }
        fleet
    })
}

fn clusters() -> impl Strategy<Value = Cluster> {
    models().prop_map(|models| {
        let versions = models.into_values().flatten();
        let views = versions.map(|(_, version)| registered(&version.registration));
        Cluster {
            models: views.collect(),
            ..Cluster::default()
        }
    })
}

fn ids(cluster: &Cluster) -> BTreeSet<(ModelName, ModelVersion)> {
    let ids = cluster
        .models
        .iter()
        .map(|view| (view.name.clone(), view.version));
    ids.collect()
}

proptest! {
    #[test]
    fn applied_twice_the_second_changes_nothing(fleet in fleets(), mut cluster in clusters(), prune: bool) {
        apply(&fleet, &mut cluster, prune);
        let second = plan(&fleet, &cluster, prune);
        prop_assert!(second.is_done(), "{:#?}", second.steps);
        for (name, model) in &fleet.models {
            for version in model.versions.keys() {
                prop_assert!(cluster.version(name, *version).is_some());
            }
        }
    }

    #[test]
    fn an_apply_that_was_interrupted_anywhere_continues(fleet in fleets(), cluster in clusters(), prune: bool) {
        let steps = plan(&fleet, &cluster, prune).steps;
        for done in 0..=steps.len() {
            let mut cluster = cluster.clone();
            for step in &steps[..done] {
                carry_out(&fleet, &mut cluster, step);
            }
            apply(&fleet, &mut cluster, prune);
            prop_assert!(plan(&fleet, &cluster, prune).is_done());
        }
    }

    #[test]
    fn what_the_files_name_is_never_removed_and_the_rest_only_by_prune(
        fleet in fleets(), mut cluster in clusters(), prune: bool, doubted in prop::sample::select(&NAMES[..]),
    ) {
        let mut fleet = fleet;
        fleet.unreadable.insert(name(doubted));
        let before = ids(&cluster);
        apply(&fleet, &mut cluster, prune);
        let after = ids(&cluster);
        for (model, version) in &before {
            let named = fleet.models.get(model).is_some_and(|of| of.versions.contains_key(version));
            let stays = !prune || named || model.as_str() == doubted;
            prop_assert_eq!(after.contains(&(model.clone(), *version)), stays, "{}:{}", model, version);
        }
    }

    #[test]
    fn versions_come_before_splits_and_splits_before_removals(fleet in fleets(), cluster in clusters()) {
        let rank = |step: &Step| match step.change {
            Change::Split(..) => 1,
            Change::Remove(..) => 2,
            _ => 0,
        };
        let steps = plan(&fleet, &cluster, true).steps;
        prop_assert!(steps.is_sorted_by_key(rank));
    }

    #[test]
    fn a_change_of_one_field_is_one_step_with_this_field(
        fleet in fleets(), mut cluster in clusters(), chosen: prop::sample::Index,
    ) {
        prop_assume!(!fleet.models.is_empty());
        apply(&fleet, &mut cluster, false);
        let at = chosen.index(fleet.models.len());
        let of = fleet.models.keys().nth(at).unwrap().clone();
        let mut fleet = fleet;
        let newest = fleet.models.get_mut(&of).unwrap().versions.values_mut().next_back().unwrap();
        newest.registration.slo_ms = 777.0;
        let number = newest.registration.version.unwrap();
        let changed = plan(&fleet, &cluster, false);
        prop_assert_eq!(changed.steps.len(), 1);
        let step = &changed.steps[0];
        let is_it = matches!(&step.change, Change::Model(name, Some(of_version), change)
            if *name == of && *of_version == number
                && **change == ModelChange { slo_ms: Some(777.0), ..ModelChange::default() });
        prop_assert!(is_it, "{:?}", step);
        prop_assert_eq!(step.fields.len(), 1);
        prop_assert_eq!(&step.fields[0].field, "slo_ms");
        prop_assert_eq!(&step.fields[0].new, &json!(777.0));
    }
}

#[test]
fn a_version_that_still_gets_requests_is_not_removed_yet() {
    let two = declared("a", 2, 1, 100.0, &json!({}));
    let model = DeclaredModel {
        versions: [(version(2), two.clone())].into(),
        split: None,
    };
    let fleet = Fleet {
        models: [(name("a"), model)].into(),
        ..Fleet::default()
    };
    let mut one = registered(&declared("a", 1, 0, 100.0, &json!({})).registration);
    one.share_pct = 30;
    let mut cluster = Cluster {
        models: vec![one, registered(&two.registration)],
        ..Cluster::default()
    };
    let waits = plan(&fleet, &cluster, true);
    assert_eq!((waits.steps.len(), waits.held.len()), (0, 1));
    assert_eq!(waits.held[0].share_pct, 30);
    assert!(!waits.is_done());
    cluster.models[0].share_pct = 0;
    let removes = plan(&fleet, &cluster, true);
    let expected = Change::Remove(name("a"), Some(version(1)));
    assert_eq!(removes.steps[0].change, expected);
    assert_eq!(plan(&fleet, &cluster, false).unnamed.len(), 1);
}

#[test]
fn a_family_comes_with_its_accuracy_and_goes_without() {
    let plain = declared("a", 1, 0, 100.0, &json!({}));
    let variant = declared("a", 1, 0, 100.0, &json!({"family": "f", "accuracy": 80.0}));
    let view = registered(&plain.registration);
    let fields = |declared: &DeclaredVersion, view: &ModelView| {
        let Comparison::Change(steps) = compare(view, declared, true) else {
            panic!("the program is the same");
        };
        let [step] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert!(matches!(step.change, Change::Model(_, None, _)), "{step:?}");
        let fields = step.fields.iter();
        fields
            .map(|field| (field.field.clone(), field.new.clone()))
            .collect::<Vec<_>>()
    };
    let comes = [
        ("accuracy".to_owned(), json!(80.0)),
        ("family".to_owned(), json!("f")),
    ];
    assert_eq!(fields(&variant, &view), comes);
    let gone = declared("a", 1, 0, 100.0, &json!({"family": null}));
    let view = registered(&variant.registration);
    assert_eq!(fields(&gone, &view), [("family".to_owned(), Value::Null)]);
}
