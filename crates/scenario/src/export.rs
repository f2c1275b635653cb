//! The scenario of what a gateway plans with.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ByteCount, Conditions, DemandedModel, Device, DeviceId, DeviceKind, MinReplicas, ModelId,
    PlannedReplica, PoolPlace, Priority, ProfileTable, ReplicaSpec, RequestsPerSecond,
};
use packhorse_control::{Backbone, FamilyDemand, PlanningInput};

use crate::{
    ArrivalsEntry, BackboneEntry, BackboneMemberEntry, DeviceGroup, FamilyEntry, Kept,
    LearnedEntry, ModelEntry, OrUnknown, PoolEntry, Pools, ReplicaEntry, ScenarioFile, ShareEntry,
    SimulationEntry, VariantEntry, observations_to_csv,
};

/// Returns the scenario of this name whose plan is that of a planning input. Every number is written such that it is read back as it is.
pub fn export(name: &str, input: &PlanningInput) -> ScenarioFile {
    let problem = &input.problem;
    let mut profiles = problem.profiles.clone();
    let devices = device_groups(input, &mut profiles);
    let has = |table: &ProfileTable| !table.is_empty();
    let conditions = &problem.conditions;
    ScenarioFile {
        name: name.to_owned(),
        policy: Some(input.policy.clone()),
        discipline: Some(problem.discipline),
        profiles: Vec::new(),
        max_batch_wait_ms: millis(conditions.max_batch_wait),
        igniter_coefficients: None,
        measured_pairs: Vec::new(),
        pool: Pools::Off,
        options: Some(input.options),
        devices: Some(devices),
        autoscale: None,
        models: Some(problem.models.iter().map(model_entry).collect()),
        whole_rates_rps: whole_rates(input),
        families: input.families.iter().map(family_entry).collect(),
        backbones: input.backbones.iter().map(backbone_entry).collect(),
        replicas: replica_entries(input),
        simulation: SimulationEntry {
            network_base_ms: millis(problem.network.base),
            network_bytes_per_s: problem.network.bytes_per_second,
            ..simulation_entry(conditions, &problem.models)
        },
        learned: LearnedEntry {
            profiles: has(&profiles).then(|| profiles.to_csv()),
            observations: (!problem.observations.is_empty())
                .then(|| observations_to_csv(&problem.observations)),
        },
    }
}

/// Returns the TOML of the scenario of this name whose plan is that of a planning input.
///
/// # Errors
/// If a number is none that TOML has.
pub fn export_toml(name: &str, input: &PlanningInput) -> Result<String, ExportError> {
    let text = toml::to_string(&export(name, input))?;
    Ok(format!("{HEAD}{text}"))
}

/// A planning input that cannot be written as TOML.
#[derive(Debug, thiserror::Error)]
#[error("the scenario cannot be written")]
pub struct ExportError(#[from] toml::ser::Error);

/// The beginning of an exported file.
const HEAD: &str = "\
# What a gateway plans with. `packhorse-lab plan --scenario` makes the plan that the gateway would make of it, unless the gateway's time for a plan
# ends before. `packhorse-lab simulate` runs that plan.

";

/// Returns the settings of a simulation under these conditions, whose window is at least as long as every SLO.
fn simulation_entry(conditions: &Conditions, models: &[DemandedModel]) -> SimulationEntry {
    let Conditions {
        router_overhead,
        return_time,
        client_overhead,
        burstiness,
        mps_exponent,
        max_batch_wait: _,
    } = *conditions;
    let defaults = SimulationEntry::default();
    let longest = models.iter().map(|model| model.slo.as_secs_f64().ceil());
    SimulationEntry {
        window_s: longest.fold(defaults.window_s, f64::max),
        client_overhead_ms: millis(client_overhead),
        router_overhead_ms: millis(router_overhead),
        return_ms: millis(return_time),
        mps_exponent,
        arrivals: if burstiness.total_cmp(&1.0).is_eq() {
            ArrivalsEntry::Poisson
        } else {
            ArrivalsEntry::GammaCv(burstiness)
        },
        ..defaults
    }
}

/// Returns the devices, of which equal neighbours are a group. The kinds that stand for a device without some models are written as the kind of the
/// device, and their profiles are removed.
fn device_groups(input: &PlanningInput, profiles: &mut ProfileTable) -> Vec<DeviceGroup> {
    let mut groups: Vec<DeviceGroup> = Vec::new();
    for (device, id) in input.problem.devices.iter().zip(&input.devices) {
        let kind = input.kinds.get(id).unwrap_or(&device.kind);
        let excluded = if *kind == device.kind {
            Vec::new()
        } else {
            take_exception(&input.problem.profiles, profiles, kind, &device.kind)
        };
        let group = device_group(device, kind, excluded);
        match groups.last_mut() {
            Some(last) if is_like(last, &group) => {
                last.count += 1;
                last.names.push(id.local().to_owned());
            }
            _ => groups.push(DeviceGroup {
                names: vec![id.local().to_owned()],
                ..group
            }),
        }
    }
    groups
}

/// Removes the profiles of a kind that stands for another one without some models. Returns these models.
fn take_exception(
    all: &ProfileTable,
    profiles: &mut ProfileTable,
    kind: &DeviceKind,
    exception: &DeviceKind,
) -> Vec<ModelId> {
    let models = all.iter().filter(|(_, of, _)| *of == kind);
    let missing = models.filter(|(model, ..)| all.get(model, exception).is_none());
    for (model, of, _) in all.iter() {
        if of == exception {
            profiles.remove(model, exception);
        }
    }
    missing.map(|(model, ..)| model.clone()).collect()
}

/// Returns true if the next device belongs to a group.
fn is_like(group: &DeviceGroup, next: &DeviceGroup) -> bool {
    let (count, names) = (group.count, group.names.clone());
    let next = DeviceGroup {
        count,
        names,
        ..next.clone()
    };
    *group == next
}

/// Returns the group of one device without a name.
fn device_group(device: &Device, kind: &DeviceKind, excluded: Vec<ModelId>) -> DeviceGroup {
    let pool = device.pool;
    DeviceGroup {
        kind: kind.to_string(),
        count: 1,
        gpus_per_node: None,
        node: Some(device.node.clone()),
        names: Vec::new(),
        memory_mib: Some(device.memory.as_mib_f64()),
        sm_count: Some(OrUnknown::from(device.multiprocessors)),
        cost_per_hour: Some(OrUnknown::from(device.cost_per_hour)),
        excluded_models: excluded,
        pool: pool.map(|_| Pools::Auto),
        own_workers: pool.map_or(0, |pool| pool.own_workers),
        host_link_bytes_per_s: pool.map(|pool| pool.host_link_bytes_per_second),
        process_mib: pool.map_or(0.0, |pool| pool.process.as_mib_f64()),
    }
}

fn model_entry(model: &DemandedModel) -> ModelEntry {
    let (priority, min_replicas) = (model.priority, model.min_replicas);
    ModelEntry {
        name: model.id.to_string(),
        rate_rps: model.rate.get(),
        need_rps: model.need,
        priority: (priority != Priority::default()).then_some(priority),
        min_replicas: (min_replicas != MinReplicas::default()).then_some(min_replicas),
        slo_ms: millis(model.slo),
        max_batch_size: Some(model.max_batch_size),
        payload_bytes: model.payload.as_u64(),
        latency_scale: Some(model.latency_scale).filter(|scale| scale.total_cmp(&1.0).is_ne()),
        weights_mib: model.weights.map(ByteCount::as_mib_f64),
        load_ms: millis(model.load_time),
        ..ModelEntry::default()
    }
}

/// Returns the rates of models that differ from those in the problem, or are not there.
fn whole_rates(input: &PlanningInput) -> BTreeMap<ModelId, RequestsPerSecond> {
    let models = input.problem.models.iter();
    let planned: BTreeMap<&ModelId, RequestsPerSecond> =
        models.map(|model| (&model.id, model.rate)).collect();
    let rates = input.rates.iter();
    rates
        .filter(|(id, rate)| planned.get(id) != Some(rate))
        .map(|(id, rate)| (id.clone(), *rate))
        .collect()
}

fn family_entry(family: &FamilyDemand) -> FamilyEntry {
    let variants = family.variants.iter().map(|variant| {
        let versions = variant.shares.iter().map(|(model, share)| ShareEntry {
            model: model.clone(),
            share: *share,
        });
        VariantEntry {
            accuracy: variant.accuracy,
            rate_rps: variant.rate,
            versions: versions.collect(),
        }
    });
    FamilyEntry {
        name: family.name.clone(),
        rate_rps: family.rate,
        variants: variants.collect(),
    }
}

fn backbone_entry(backbone: &Backbone) -> BackboneEntry {
    let members = backbone.members.iter().map(|member| BackboneMemberEntry {
        model: member.model.clone(),
        artifact: member.artifact,
        own_mib: member.own.as_mib_f64(),
    });
    BackboneEntry {
        members: members.collect(),
    }
}

/// Returns the replicas of the current plan, and then those that are kept.
fn replica_entries(input: &PlanningInput) -> Vec<ReplicaEntry> {
    let problem = &input.problem;
    let current = problem.current.iter().map(|replica: &PlannedReplica| {
        let model = problem.models[replica.model.0].id.clone();
        let spec = ReplicaSpec {
            model,
            device: input.devices[replica.device.0].clone(),
            batch_size: replica.batch_size,
            compute_share: replica.compute_share,
            duty_cycle: replica.duty_cycle,
            memory: None,
            backbone: replica.backbone,
            pool: replica.pool,
        };
        replica_entry(&spec, None)
    });
    let pinned = input.pinned.iter().map(|spec| (spec, Kept::Always));
    let retained = input.retained.iter().map(|spec| (spec, Kept::UnlessPlaced));
    let kept = pinned.chain(retained).map(|(spec, kept)| ReplicaEntry {
        device_kind: input.kinds.get(&spec.device).cloned(),
        ..replica_entry(spec, Some(kept))
    });
    current.chain(kept).collect()
}

fn replica_entry(spec: &ReplicaSpec<ModelId, DeviceId>, kept: Option<Kept>) -> ReplicaEntry {
    ReplicaEntry {
        model: spec.model.clone(),
        device: spec.device.clone(),
        batch_size: spec.batch_size,
        compute_share_pct: spec.compute_share,
        duty_cycle_ms: spec.duty_cycle.map(millis),
        backbone: spec.backbone.map(|backbone| backbone.to_string()),
        kept,
        device_kind: None,
        memory_mib: spec.memory.map(ByteCount::as_mib_f64),
        pool: spec.pool.map(pool_entry),
    }
}

fn pool_entry(place: PoolPlace) -> PoolEntry {
    PoolEntry {
        weights_mib: place.weights.as_mib_f64(),
        memory_mib: place.memory.as_mib_f64(),
        load_ms: millis(place.load),
        residency: place.residency,
    }
}

/// Returns a time in milliseconds, from which the nanoseconds can be read back.
fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}
