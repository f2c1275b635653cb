//! The part of a scenario that a plan takes into account beside the problem: the current plan, families, backbones, and the names of devices.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    ByteCount, Device, DeviceId, DeviceIndex, DeviceKind, Discipline, IdError, ModelId, ModelIndex,
    PlannedReplica, PolicyOptions, PoolPlace, Problem, ProfileTable, Program, ReplicaSpec,
    RequestsPerSecond,
};
use packhorse_control::{Backbone, BackboneMember, FamilyDemand, VariantDemand};
use packhorse_scenario::{
    BackboneEntry, DeviceGroup, FamilyEntry, Kept, PoolEntry, ReplicaEntry, ScenarioFile,
    ShareEntry, VariantEntry,
};

use super::values::{MS, ScenarioError, duration, field_error};

/// The facts that a plan for a scenario takes into account beside the problem. They are empty but for the devices unless the scenario was exported from a
/// gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanningContext {
    /// The policy that the scenario names.
    pub policy: Option<String>,
    /// The options of that policy.
    pub options: Option<PolicyOptions>,
    /// The discipline that the scenario names.
    pub discipline: Option<Discipline>,
    /// The names of the problem's devices, in its order.
    pub devices: Vec<DeviceId>,
    /// True if the scenario gives names to devices, rather than numbers.
    pub names_devices: bool,
    /// The kinds of the devices and of those of the kept replicas. The problem has a kind of its own for a device that takes no replicas of some
    /// models.
    pub kinds: BTreeMap<DeviceId, DeviceKind>,
    /// The rates of models of which kept replicas serve a part, or all.
    pub whole_rates: BTreeMap<ModelId, RequestsPerSecond>,
    /// The families whose rates a plan may spread over their variants.
    pub families: Vec<FamilyDemand>,
    /// The backbones that models share.
    pub backbones: Vec<Backbone>,
    /// The replicas that every plan has.
    pub pinned: Vec<ReplicaSpec>,
    /// The replicas that a plan has which does not place their model.
    pub retained: Vec<ReplicaSpec>,
}

impl PlanningContext {
    /// Returns the names of the devices; empty if the scenario gives none.
    pub(crate) fn given_names(&self) -> &[DeviceId] {
        if self.names_devices {
            &self.devices
        } else {
            &[]
        }
    }
}

/// Returns the name of each device: NODE/NAME, with its number in place of a name that the scenario does not give.
pub(super) fn parse_device_ids(
    groups: &[DeviceGroup],
    devices: &[Device],
) -> Result<Vec<DeviceId>, ScenarioError> {
    let mut ids = Vec::with_capacity(devices.len());
    let mut seen = BTreeSet::new();
    let mut add = |field: String, id: Result<DeviceId, IdError>| {
        let id = id.or_else(|e| field_error(&field, e.to_string()))?;
        if !seen.insert(id.clone()) {
            return field_error(field, format!("device {id} is given twice"));
        }
        ids.push(id);
        Ok(())
    };
    let mut number = 0;
    for (i, group) in groups.iter().enumerate() {
        let (named, count) = (group.names.len(), group.count);
        if named != 0 && named != count {
            let problem = format!("expected {count} names, one for each device, not {named}");
            return field_error(format!("devices[{i}].names"), problem);
        }
        for j in 0..count {
            let numbered = number.to_string();
            let name = group.names.get(j).unwrap_or(&numbered);
            let id = DeviceId::new(devices[number].node.clone(), name);
            add(format!("devices[{i}].names[{j}]"), id)?;
            number += 1;
        }
    }
    // Those that an autoscaler adds.
    for (number, device) in devices.iter().enumerate().skip(number) {
        let id = DeviceId::new(device.node.clone(), &number.to_string());
        add("autoscale".to_owned(), id)?;
    }
    Ok(ids)
}

/// Gives each device that takes no replicas of some models a kind of its own, without their profiles.
pub(super) fn exclude_models(
    groups: &[DeviceGroup],
    devices: &mut [Device],
    profiles: &mut ProfileTable,
) {
    let groups = groups
        .iter()
        .flat_map(|group| std::iter::repeat_n(group, group.count));
    for (number, (device, group)) in devices.iter_mut().zip(groups).enumerate() {
        if !group.excluded_models.is_empty() {
            let is_kept = |model: &ModelId| !group.excluded_models.contains(model);
            device.kind = profiles.except(&device.kind, number, is_kept);
        }
    }
}

/// Reads the context, and the current replicas of the problem.
pub(super) fn parse_context(
    file: &ScenarioFile,
    devices: Vec<DeviceId>,
    mut kinds: BTreeMap<DeviceId, DeviceKind>,
    problem: &mut Problem,
) -> Result<PlanningContext, ScenarioError> {
    let (mut pinned, mut retained) = (Vec::new(), Vec::new());
    let models = problem.models.iter().map(|model| &model.id);
    let models: BTreeMap<&ModelId, usize> = models.zip(0..).collect();
    let numbers: BTreeMap<&DeviceId, usize> = devices.iter().zip(0..).collect();
    let mut current = Vec::new();
    for (i, entry) in file.replicas.iter().enumerate() {
        let spec = parse_replica(i, entry)?;
        let at = |key: &str| format!("replicas[{i}].{key}");
        let Some(kept) = entry.kept else {
            let Some(model) = models.get(&spec.model) else {
                let problem = format!("the scenario has no model {}", spec.model);
                return field_error(at("model"), problem);
            };
            let Some(device) = numbers.get(&spec.device) else {
                let problem = format!("the scenario has no device {}", spec.device);
                return field_error(at("device"), problem);
            };
            current.push(planned(&spec, *model, *device));
            continue;
        };
        let Some(kind) = &entry.device_kind else {
            return field_error(at("device_kind"), "required for a replica that is kept");
        };
        kinds.insert(spec.device.clone(), kind.clone());
        match kept {
            Kept::Always => pinned.push(spec),
            Kept::UnlessPlaced => retained.push(spec),
        }
    }
    problem.current = current;
    let families = file.families.iter().enumerate();
    let mut groups = file.devices.iter().flatten();
    Ok(PlanningContext {
        policy: file.policy.clone(),
        options: file.options,
        discipline: file.discipline,
        whole_rates: file.whole_rates_rps.clone(),
        families: families
            .map(|(i, family)| parse_family(i, family))
            .collect::<Result<_, _>>()?,
        backbones: parse_backbones(&file.backbones)?,
        names_devices: groups.any(|group| !group.names.is_empty()),
        devices,
        kinds,
        pinned,
        retained,
    })
}

fn planned(spec: &ReplicaSpec, model: usize, device: usize) -> PlannedReplica {
    PlannedReplica {
        model: ModelIndex(model),
        device: DeviceIndex(device),
        batch_size: spec.batch_size,
        compute_share: spec.compute_share,
        duty_cycle: spec.duty_cycle,
        memory: spec.memory,
        backbone: spec.backbone,
        pool: spec.pool,
    }
}

fn parse_replica(i: usize, entry: &ReplicaEntry) -> Result<ReplicaSpec, ScenarioError> {
    let at = |key: &str| format!("replicas[{i}].{key}");
    let max = Program::MAX_BATCH_SIZE;
    if !(1..=max).contains(&entry.batch_size) {
        let problem = format!("expected between 1 and {max}, not {}", entry.batch_size);
        return field_error(at("batch_size"), problem);
    }
    let duty_cycle = entry.duty_cycle_ms;
    let duty_cycle = duty_cycle.map(|ms| duration(at("duty_cycle_ms"), ms, MS));
    let backbone = entry.backbone.as_deref().map(str::parse).transpose();
    let memory = entry
        .memory_mib
        .map(|mib| parse_mib(at("memory_mib"), mib))
        .transpose()?;
    Ok(ReplicaSpec {
        model: entry.model.clone(),
        device: entry.device.clone(),
        batch_size: entry.batch_size,
        compute_share: entry.compute_share_pct,
        duty_cycle: duty_cycle.transpose()?,
        memory,
        backbone: backbone.or_else(|e: IdError| field_error(at("backbone"), e.to_string()))?,
        pool: entry
            .pool
            .map(|pool| parse_pool(&at("pool"), pool))
            .transpose()?,
    })
}

fn parse_pool(field: &str, entry: PoolEntry) -> Result<PoolPlace, ScenarioError> {
    Ok(PoolPlace {
        weights: parse_mib(format!("{field}.weights_mib"), entry.weights_mib)?,
        memory: parse_mib(format!("{field}.memory_mib"), entry.memory_mib)?,
        load: duration(format!("{field}.load_ms"), entry.load_ms, MS)?,
        residency: entry.residency,
    })
}

/// Reads an amount of memory.
pub(super) fn parse_mib(field: impl Into<String>, mib: f64) -> Result<ByteCount, ScenarioError> {
    ByteCount::try_from_mib_f64(mib).or_else(|e| field_error(field, e.to_string()))
}

fn parse_family(i: usize, entry: &FamilyEntry) -> Result<FamilyDemand, ScenarioError> {
    let variants = entry.variants.iter().enumerate();
    let variant = |(j, variant): (usize, &VariantEntry)| {
        let versions = variant.versions.iter().enumerate();
        let share = |(k, version): (usize, &ShareEntry)| {
            let share = version.share;
            if (0.0..=1.0).contains(&share) {
                return Ok((version.model.clone(), share));
            }
            let field = format!("families[{i}].variants[{j}].versions[{k}].share");
            field_error(field, format!("expected between 0 and 1, not {share}"))
        };
        Ok(VariantDemand {
            accuracy: variant.accuracy,
            rate: variant.rate_rps,
            shares: versions.map(share).collect::<Result<_, _>>()?,
        })
    };
    Ok(FamilyDemand {
        name: entry.name.clone(),
        rate: entry.rate_rps,
        variants: variants.map(variant).collect::<Result<_, _>>()?,
    })
}

fn parse_backbones(entries: &[BackboneEntry]) -> Result<Vec<Backbone>, ScenarioError> {
    let backbone = |(i, entry): (usize, &BackboneEntry)| {
        let members = entry.members.iter().enumerate();
        let members = members.map(|(j, member)| {
            let field = format!("backbones[{i}].members[{j}].own_mib");
            Ok(BackboneMember {
                model: member.model.clone(),
                artifact: member.artifact,
                own: parse_mib(field, member.own_mib)?,
            })
        });
        Ok(Backbone {
            members: members.collect::<Result<_, _>>()?,
        })
    };
    entries.iter().enumerate().map(backbone).collect()
}

#[cfg(test)]
mod tests;
