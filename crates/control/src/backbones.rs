//! Models that share a backbone: how they are found, and how any policy plans them.
//!
//! Programs share a backbone if they begin with the same operators on the same weights, such as classifiers that were trained on one frozen
//! network. One worker then runs the replicas of all of them on a device, holds the backbone once, and computes batches of several models in
//! one run. To a policy they are a single model, with the rate of all and the strictest SLO; each replica of that model becomes one of each of
//! them.
//!
//! Sources: prefix batching, Nexus (Shen et al., SOSP 2019, section 5.3); the graph merger of Usher (Shubha et al., OSDI 2024, section 3.4),
//! which also merges weights that are merely alike. That changes answers, and is not done here.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    ArtifactDigest, BackboneId, ByteCount, DemandedModel, DeviceId, DeviceIndex, DeviceKind,
    ModelForecast, ModelId, ModelIndex, Plan, PlannedReplica, PoolPlace, Problem, Profile,
    ProfileRow, ProfileSource, RequestsPerSecond,
};

use crate::{models::Model, state::State};

/// The part of the weights of each model that the backbone must have at least.
const LEAST_SHARED: f64 = 0.5;
/// The most by which the SLOs of models may differ: the strictest one counts for all.
const MOST_SLO_RATIO: f64 = 2.0;
/// The most models of a backbone. Each has a connection to the worker and its own queue.
const MOST_MODELS: usize = 16;

/// The models that share a backbone, at least two.
#[derive(Clone, Debug, PartialEq)]
pub struct Backbone {
    /// The models.
    pub members: Vec<BackboneMember>,
}

/// A model that shares its backbone.
#[derive(Clone, Debug, PartialEq)]
pub struct BackboneMember {
    /// The model.
    pub model: ModelId,
    /// The digest of its program.
    pub artifact: ArtifactDigest,
    /// The bytes of the weights that it does not share.
    pub own: ByteCount,
}

/// A model that may share its backbone.
struct Candidate<'a> {
    id: &'a ModelId,
    model: &'a Model,
    weights: BTreeMap<u64, u64>,
    /// The bytes of all weights.
    all: u64,
}

impl State {
    /// Returns the backbones that several models share. A model is in one at most.
    pub(crate) fn backbones(&self) -> Vec<Backbone> {
        let models = self.models.iter();
        let candidates: Vec<Candidate<'_>> = models
            .filter_map(|(id, model)| Candidate::new(id, model))
            .collect();
        // Most models have nothing in common, and are not compared.
        let mut with_digest: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (place, candidate) in candidates.iter().enumerate() {
            for digest in candidate.weights.keys() {
                with_digest.entry(*digest).or_default().push(place);
            }
        }
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        let mut backbones = Vec::new();
        for (place, first) in candidates.iter().enumerate() {
            if taken.contains(&place) {
                continue;
            }
            let digests = first.weights.keys().flat_map(|digest| &with_digest[digest]);
            let related: BTreeSet<usize> = digests
                .copied()
                .filter(|other| *other > place && !taken.contains(other))
                .collect();
            let mut shared = first.weights.clone();
            let mut together = vec![first];
            for other in related {
                let candidate = &candidates[other];
                let common = candidate.common(&shared);
                let fits = |member: &&Candidate<'_>| member.fits(candidate, &common);
                if together.len() < MOST_MODELS && together.iter().all(fits) {
                    shared = common;
                    together.push(candidate);
                    taken.insert(other);
                }
            }
            if together.len() > 1 {
                backbones.push(Backbone::of(&together, &shared));
            }
        }
        backbones
    }

    /// Returns the devices with a worker that runs several models. There the slowdown of a batch is not known: it is computed with those of
    /// other models.
    pub(crate) fn devices_of_backbones(&self) -> BTreeSet<DeviceId> {
        let replicas = self.rollout.iter();
        let shared = replicas.filter(|replica| replica.spec.backbone.is_some());
        shared.map(|replica| replica.spec.device.clone()).collect()
    }
}

impl<'a> Candidate<'a> {
    /// Returns the model as a candidate; `None` if it shares nothing.
    fn new(id: &'a ModelId, model: &'a Model) -> Option<Self> {
        let weights = &model.operators.as_ref()?.weights;
        let program = &model.program;
        let is_possible = program.batches() && model.failure.is_none() && !weights.is_empty();
        let shareable = weights.iter().filter(|read| read.digest != 0);
        is_possible.then(|| Self {
            id,
            model,
            weights: shareable.map(|read| (read.digest, read.bytes)).collect(),
            all: weights.iter().map(|read| read.bytes).sum(),
        })
    }

    /// Returns those of some weights that this model has, too.
    fn common(&self, weights: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        let common = weights
            .iter()
            .filter(|(digest, _)| self.weights.contains_key(digest));
        common.map(|(digest, bytes)| (*digest, *bytes)).collect()
    }

    /// Returns true if the two models can share these weights.
    fn fits(&self, other: &Self, shared: &BTreeMap<u64, u64>) -> bool {
        let (one, two) = (self.model, other.model);
        let (slo, other_slo) = (one.spec.slo, two.spec.slo);
        let bytes: u64 = shared.values().sum();
        let is_most = |all: u64| bytes as f64 >= LEAST_SHARED * all as f64;
        one.program.inputs == two.program.inputs
            && slo.as_secs_f64() <= MOST_SLO_RATIO * other_slo.as_secs_f64()
            && other_slo.as_secs_f64() <= MOST_SLO_RATIO * slo.as_secs_f64()
            && is_most(self.all)
            && is_most(other.all)
    }
}

impl Backbone {
    fn of(together: &[&Candidate<'_>], shared: &BTreeMap<u64, u64>) -> Self {
        let shared: u64 = shared.values().sum();
        let members = together.iter().map(|candidate| BackboneMember {
            model: candidate.id.clone(),
            artifact: candidate.model.program.artifact,
            own: ByteCount::new(candidate.all.saturating_sub(shared)),
        });
        Self {
            members: members.collect(),
        }
    }

    /// Returns the models.
    pub fn models(&self) -> impl Iterator<Item = &ModelId> {
        self.members.iter().map(|member| &member.model)
    }
}

/// A problem in which models that share a backbone are one model.
#[derive(Debug)]
pub(crate) struct MergedProblem<'a> {
    original: &'a Problem,
    merged: Problem,
    /// For each model of the merged problem those of the original that it stands for. The first of several is the slowest.
    members: Vec<Vec<ModelIndex>>,
    /// The backbones of the merged models, by their index.
    backbones: BTreeMap<usize, Backbone>,
}

impl<'a> MergedProblem<'a> {
    /// Merges the models of a problem; `None` if no two share a backbone.
    pub(crate) fn new(original: &'a Problem, backbones: &[Backbone]) -> Option<Self> {
        let indices: BTreeMap<&ModelId, ModelIndex> = original
            .models()
            .map(|(index, model)| (&model.id, index))
            .collect();
        let mut groups: BTreeMap<ModelIndex, (Vec<ModelIndex>, Backbone)> = BTreeMap::new();
        for backbone in backbones {
            let found = backbone.models().filter_map(|id| indices.get(id).copied());
            for mut members in with_the_same_profiles(original, found) {
                let limits = members
                    .iter()
                    .map(|index| original.models[index.0].max_batch_size);
                let rows = limits.min().unwrap_or(1);
                members.sort_by_key(|index| Reverse(slowest_time(original, *index, rows)));
                let ids: Vec<&ModelId> = members
                    .iter()
                    .map(|index| &original.models[index.0].id)
                    .collect();
                let of_them = backbone
                    .members
                    .iter()
                    .filter(|member| ids.contains(&&member.model));
                let backbone = Backbone {
                    members: of_them.cloned().collect(),
                };
                let place = *members.iter().min().expect("there are some");
                groups.insert(place, (members, backbone));
            }
        }
        if groups.is_empty() {
            return None;
        }
        let grouped: BTreeSet<ModelIndex> = groups
            .values()
            .flat_map(|(members, _)| members.iter().copied())
            .collect();
        let mut merged = Self {
            original,
            merged: Problem {
                models: Vec::new(),
                current: Vec::new(),
                ..original.clone()
            },
            members: Vec::new(),
            backbones: BTreeMap::new(),
        };
        for (index, model) in original.models() {
            if let Some((members, backbone)) = groups.remove(&index) {
                merged.add_merged(members, &backbone);
                merged.backbones.insert(merged.members.len() - 1, backbone);
            } else if !grouped.contains(&index) {
                merged.merged.models.push(model.clone());
                merged.members.push(vec![index]);
            }
        }
        merged.merged.current = merged.collapse(&original.current);
        Some(merged)
    }

    /// Returns the merged problem.
    pub(crate) fn problem(&self) -> &Problem {
        &self.merged
    }

    fn add_merged(&mut self, members: Vec<ModelIndex>, backbone: &Backbone) {
        let demanded = |index: &ModelIndex| &self.original.models[index.0];
        let all = || members.iter().map(demanded);
        let first = demanded(&members[0]);
        let rate: f64 = all().map(|model| model.rate.get()).sum();
        let model = DemandedModel {
            id: first.id.clone(),
            rate: RequestsPerSecond::new(rate).unwrap_or(first.rate),
            need: all()
                .filter_map(|model| model.need)
                .reduce(|sum, need| RequestsPerSecond::new(sum.get() + need.get()).unwrap_or(sum)),
            priority: all()
                .map(|model| model.priority)
                .max()
                .unwrap_or(first.priority),
            min_replicas: all()
                .map(|model| model.min_replicas)
                .max()
                .unwrap_or(first.min_replicas),
            slo: all().map(|model| model.slo).min().unwrap_or(first.slo),
            max_batch_size: all()
                .map(|model| model.max_batch_size)
                .min()
                .unwrap_or(first.max_batch_size),
            payload: all()
                .map(|model| model.payload)
                .max()
                .unwrap_or(first.payload),
            load_time: all().map(|model| model.load_time).sum(),
            latency_scale: all().map(|model| model.latency_scale).fold(0.0, f64::max),
            weights: None,
        };
        let more = backbone
            .members
            .iter()
            .filter(|member| member.model != first.id);
        let more: ByteCount = more.map(|member| member.own).sum();
        for (kind, profile) in self.original.profiles.of_model(&first.id) {
            let profile = with_more_memory(profile, more);
            let profiles = &mut self.merged.profiles;
            profiles.insert(first.id.clone(), kind.clone(), profile);
        }
        self.merged.models.push(model);
        self.members.push(members);
    }

    /// Converts replicas of the original problem. Those of merged models that do not share a worker have no counterpart.
    pub(crate) fn collapse(&self, replicas: &[PlannedReplica]) -> Vec<PlannedReplica> {
        let mut places: BTreeMap<ModelIndex, usize> = BTreeMap::new();
        for (merged, members) in self.members.iter().enumerate() {
            places.extend(members.iter().map(|member| (*member, merged)));
        }
        let mut seen: BTreeSet<(DeviceIndex, BackboneId)> = BTreeSet::new();
        let mut collapsed = Vec::new();
        for replica in replicas {
            let Some(merged) = places.get(&replica.model) else {
                continue;
            };
            let is_kept = match (self.backbones.get(merged), replica.backbone) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(_), Some(backbone)) => seen.insert((replica.device, backbone)),
            };
            if is_kept {
                collapsed.push(PlannedReplica {
                    model: ModelIndex(*merged),
                    memory: None,
                    backbone: None,
                    ..replica.clone()
                });
            }
        }
        collapsed
    }

    /// Converts a plan of the original problem, as [`Self::collapse`] converts its replicas.
    fn collapse_plan(&self, plan: &Plan) -> Plan {
        let merge = |members: &Vec<ModelIndex>| {
            let forecasts = || members.iter().map(|member| &plan.models[member.0]);
            let goodput: f64 = forecasts().map(|forecast| forecast.goodput.get()).sum();
            let first = forecasts()
                .next()
                .expect("a merged model has members")
                .clone();
            ModelForecast {
                goodput: RequestsPerSecond::new(goodput).unwrap_or(first.goodput),
                ..first
            }
        };
        Plan {
            policy: plan.policy,
            replicas: self.collapse(&plan.replicas),
            models: self.members.iter().map(merge).collect(),
        }
    }

    /// Returns what a function says of each model of a plan of the original problem. Of merged models it says the same of each.
    pub(crate) fn of_models<T: Clone>(
        &self,
        plan: &Plan,
        function: impl FnOnce(&Problem, &Plan) -> Vec<T>,
    ) -> Vec<T> {
        let said = function(&self.merged, &self.collapse_plan(plan));
        let spread = self.members.iter().zip(said).flat_map(|(members, said)| {
            let said = std::iter::repeat_n(said, members.len());
            members.iter().copied().zip(said)
        });
        let spread: BTreeMap<ModelIndex, T> = spread.collect();
        spread.into_values().collect()
    }

    /// Converts a plan of the merged problem into one of the original.
    pub(crate) fn expand(&self, plan: Plan) -> Plan {
        let mut on_device: BTreeMap<DeviceIndex, usize> = BTreeMap::new();
        for replica in &plan.replicas {
            *on_device.entry(replica.device).or_default() += 1;
        }
        let mut replicas = Vec::new();
        let mut numbers: BTreeMap<(ModelIndex, DeviceIndex), u64> = BTreeMap::new();
        for replica in plan.replicas {
            let members = &self.members[replica.model.0];
            if replica.pool.is_some() && members.len() > 1 {
                // In a pool each has its own program. What the plan takes for the weights of one are those of all.
                let separate = members.iter().map(|&model| PlannedReplica {
                    model,
                    memory: None,
                    pool: replica.pool.map(PoolPlace::warm),
                    ..replica.clone()
                });
                replicas.extend(separate);
                continue;
            }
            let Some(backbone) = self.backbones.get(&replica.model.0) else {
                let model = members[0];
                replicas.push(PlannedReplica { model, ..replica });
                continue;
            };
            let number = numbers.entry((replica.model, replica.device)).or_default();
            let artifacts = backbone.members.iter().map(|member| member.artifact);
            let id = BackboneId::new(artifacts, *number);
            *number += 1;
            let profile = self.merged.profile(replica.model, replica.device);
            let memory = profile.and_then(|profile| profile.memory(replica.batch_size));
            let mut sorted = members.clone();
            sorted.sort_unstable();
            for (place, model) in sorted.into_iter().enumerate() {
                replicas.push(PlannedReplica {
                    model,
                    memory: if place == 0 {
                        memory
                    } else {
                        Some(ByteCount::ZERO)
                    },
                    backbone: Some(id),
                    // A worker that has the device for itself needs no turns, in which its models would wait for each other.
                    duty_cycle: replica
                        .duty_cycle
                        .filter(|_| on_device[&replica.device] > 1),
                    ..replica.clone()
                });
            }
        }
        replicas.sort_by_key(|replica| (replica.model, replica.device));
        Plan {
            policy: plan.policy,
            models: self.expand_forecasts(&plan.models),
            replicas,
        }
    }

    /// Divides the forecast of each merged model among those that it stands for, by their rates.
    pub(crate) fn expand_forecasts(&self, forecasts: &[ModelForecast]) -> Vec<ModelForecast> {
        let mut expanded: BTreeMap<ModelIndex, ModelForecast> = BTreeMap::new();
        for ((members, merged), forecast) in
            self.members.iter().zip(&self.merged.models).zip(forecasts)
        {
            for member in members {
                let rate = self.original.models[member.0].rate.get();
                let part = if members.len() == 1 {
                    1.0
                } else {
                    rate / merged.rate.get().max(f64::MIN_POSITIVE)
                };
                let goodput = RequestsPerSecond::new(forecast.goodput.get() * part);
                expanded.insert(
                    *member,
                    ModelForecast {
                        goodput: goodput.unwrap_or(RequestsPerSecond::ZERO),
                        ..forecast.clone()
                    },
                );
            }
        }
        expanded.into_values().collect()
    }
}

/// Divides models into those that can be planned as one: at least two with profiles on the same kinds of device.
///
/// A model whose measurement is not done has none. It joins the others with its profile, and they answer until then.
fn with_the_same_profiles(
    problem: &Problem,
    models: impl Iterator<Item = ModelIndex>,
) -> impl Iterator<Item = Vec<ModelIndex>> {
    let mut with_kinds: BTreeMap<Vec<&DeviceKind>, Vec<ModelIndex>> = BTreeMap::new();
    for index in models {
        let profiles = problem.profiles.of_model(&problem.models[index.0].id);
        let kinds = profiles.map(|(kind, _)| kind).collect();
        with_kinds.entry(kinds).or_default().push(index);
    }
    let possible = with_kinds
        .into_iter()
        .filter(|(kinds, models)| !kinds.is_empty() && models.len() > 1);
    possible.map(|(_, models)| models)
}

/// Returns the time of a batch of a model on the kind of device on which it takes longest.
fn slowest_time(problem: &Problem, index: ModelIndex, rows: u32) -> Duration {
    let profiles = problem.profiles.of_model(&problem.models[index.0].id);
    let times = profiles.map(|(_, profile)| profile.latency(rows));
    times.max().unwrap_or_default()
}

/// Returns a profile with more memory at every batch size.
fn with_more_memory(profile: &Profile, more: ByteCount) -> Profile {
    let rows = profile.rows().iter().map(|row| ProfileRow {
        memory: row.memory.map(|memory| memory.saturating_add(more)),
        ..*row
    });
    let rows = rows.collect();
    let made = match profile.source() {
        ProfileSource::Measured => Profile::new(rows),
        ProfileSource::Estimated => Profile::estimated(rows),
    };
    made.expect("the rows of a profile make one")
}

#[cfg(test)]
mod tests;
