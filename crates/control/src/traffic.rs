//! The shares of a model's versions in the requests that name none: which version shall get them, which gets them now, and whether
//! a new version answers them as well as the one before it.
//!
//! Requests move to a version in steps of what its serving replicas are planned to carry, so that no replica is drowned. The versions
//! that had them before keep the rest, and keep their replicas until the new ones have carried everything for a while (the trial).
//! A version that answers significantly fewer requests within the SLO than the one before it is rolled back.
//!
//! Where the admin gave no split, the newest version takes over, first with a small part that shows that it starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{ModelId, ModelName, ModelVersion, Split, Sticky, Time};

use crate::{
    event::RequestCounts,
    record::{RejectedVersion, SplitRecord},
};

/// The time for which a version must carry its whole share before the replicas of the versions before it go.
const TRIAL: Duration = Duration::from_secs(30);
/// The largest part of the requests, in percent, that is planned for a version before a replica of it has served. If the devices have no
/// place for it beside the version before it, the whole share is planned, and replicas of that version make room.
const FIRST_STEP: u32 = 10;
/// The time after which a version without requests loses its replicas.
const RETIREMENT: Duration = Duration::from_mins(10);
/// The time after which counts are forgotten by half.
const MEMORY: Duration = Duration::from_mins(5);
/// The least number of requests of a version that have ended when it is judged.
const LEAST_REQUESTS: f64 = 30.0;
/// The least difference between the parts of requests within the SLO that counts.
const LEAST_DIFFERENCE: f64 = 0.05;
/// The standard deviations by which the parts must differ.
const SIGNIFICANT: f64 = 3.0;

/// The traffic of all models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    names: BTreeMap<ModelName, NamedTraffic>,
    touched: BTreeSet<ModelName>,
}

/// The traffic of one model.
#[derive(Clone, Debug)]
struct NamedTraffic {
    record: SplitRecord,
    /// True if the record was written, or need not be.
    is_stored: bool,
    /// The shares that the versions shall have.
    target: Split,
    /// The shares that they have, in percent; they sum to 100.
    shares: BTreeMap<ModelVersion, u32>,
    /// The versions that had more before the target changed, with their shares then.
    donors: BTreeMap<ModelVersion, u32>,
    /// The versions of which a replica has served, and those that have no place beside the one before them.
    proven: BTreeSet<ModelVersion>,
    /// The time since which all versions of the target carry their shares.
    complete_since: Option<Time>,
    /// The versions that have a replica although they get no requests, with the time since when they get none.
    idle_since: BTreeMap<ModelVersion, Time>,
    /// The versions that get no requests and have no replica.
    retired: BTreeSet<ModelVersion>,
    counts: BTreeMap<ModelVersion, VersionCounts>,
}

/// The requests of a version.
#[derive(Clone, Copy, Debug, Default)]
struct VersionCounts {
    counted: RequestCounts,
    /// The requests that have ended since `since`, and half of those before.
    ended: f64,
    within_slo: f64,
    since: Time,
}

/// A version, and what is observed of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedVersion {
    /// The version.
    pub(crate) version: ModelVersion,
    /// True if the version can be served as it is registered.
    pub(crate) is_servable: bool,
    /// True if it has a profile and can start wherever it was tried.
    pub(crate) is_placeable: bool,
    /// The number of its replicas in the plan.
    pub(crate) planned: usize,
    /// The number of these that serve.
    pub(crate) planned_serving: usize,
    /// The number of all its replicas that serve.
    pub(crate) serving: usize,
    /// The rate that the plan assumes for it, in requests/s.
    pub(crate) planned_rate: f64,
}

/// The demand for a version, which the next plan is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Demand {
    /// This part of the model's rate.
    Share(f64),
    /// The requests that name the version, and at least one replica.
    Standby,
    /// No replica.
    Retired,
}

/// The consequences of an update.
#[derive(Debug, Default)]
pub(crate) struct TrafficChange {
    /// True if the shares or the choice of versions have changed.
    pub(crate) shares: bool,
    /// True if the demands have changed.
    pub(crate) demands: bool,
    /// The versions whose earlier replicas are no longer needed.
    pub(crate) released: Vec<ModelVersion>,
    /// The version that was rolled back.
    pub(crate) rejected: Option<RejectedVersion>,
    /// The record to store, if it has changed.
    pub(crate) record: Option<SplitRecord>,
}

impl Traffic {
    /// Restores the stored records.
    pub(crate) fn restore(records: Vec<SplitRecord>) -> Self {
        let names = records.into_iter().map(|record| {
            let split = record.split.clone();
            let split = split.or_else(|| record.stable.map(Split::all_to));
            let target = split.unwrap_or_else(|| Split::all_to(ModelVersion::FIRST));
            (record.name.clone(), NamedTraffic::new(record, target))
        });
        Self {
            names: names.collect(),
            touched: BTreeSet::new(),
        }
    }

    /// Notes that something has changed that the traffic of a model depends on.
    pub(crate) fn touch(&mut self, name: &ModelName) {
        self.touched.insert(name.clone());
    }

    /// Returns the touched models and those for which something is due.
    pub(crate) fn take_touched(&mut self, now: Time) -> BTreeSet<ModelName> {
        let due = self.names.iter().filter(|(_, traffic)| {
            let due = traffic.next_due();
            due.is_some_and(|due| due <= now)
        });
        let due: Vec<ModelName> = due.map(|(name, _)| name.clone()).collect();
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(due);
        touched
    }

    /// Returns the time at which something is due even if nothing changes.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let due = self.names.values().filter_map(NamedTraffic::next_due);
        due.min()
    }

    /// Takes the counts at the end of a period.
    pub(crate) fn sample(&mut self, now: Time, counts: &BTreeMap<ModelId, RequestCounts>) {
        for (name, traffic) in &mut self.names {
            traffic.sample(now, name, counts);
            self.touched.insert(name.clone());
        }
    }

    /// Updates the traffic of a model, whose versions are given in ascending order. A model with a single version, which was never
    /// split, has none.
    pub(crate) fn update(
        &mut self,
        now: Time,
        name: &ModelName,
        versions: &[ObservedVersion],
    ) -> TrafficChange {
        let Some(newest) = versions.last() else {
            self.names.remove(name);
            return TrafficChange::default();
        };
        if versions.len() == 1 && !self.names.contains_key(name) {
            return TrafficChange::default();
        }
        let traffic = self.names.entry(name.clone()).or_insert_with(|| {
            // The version before the newest had all requests until now.
            let stable = versions.iter().rev().nth(1).unwrap_or(newest).version;
            let record = SplitRecord {
                stable: Some(stable),
                ..SplitRecord::new(name.clone())
            };
            let mut traffic = NamedTraffic::new(record, Split::all_to(stable));
            traffic.is_stored = false;
            traffic
        });
        traffic.update(now, versions)
    }

    /// Returns the record of a model, or an empty one.
    pub(crate) fn record(&self, name: &ModelName) -> SplitRecord {
        let traffic = self.names.get(name);
        traffic.map_or_else(
            || SplitRecord::new(name.clone()),
            |traffic| traffic.record.clone(),
        )
    }

    /// Returns the shares that the versions of a model shall have; `None` for one with a single version.
    pub(crate) fn target(&self, name: &ModelName) -> Option<&Split> {
        Some(&self.names.get(name)?.target)
    }

    /// Applies the changed record of an admin.
    pub(crate) fn set_record(&mut self, record: SplitRecord) {
        let name = record.name.clone();
        self.touched.insert(name.clone());
        if let Some(traffic) = self.names.get_mut(&name) {
            traffic.record = record;
        } else {
            let target = record.stable.unwrap_or(ModelVersion::FIRST);
            let traffic = NamedTraffic::new(record, Split::all_to(target));
            self.names.insert(name, traffic);
        }
    }

    /// Returns the share of a version in the requests that name none, in percent.
    pub(crate) fn share(&self, model: &ModelId) -> u32 {
        self.names.get(&model.name).map_or(100, |traffic| {
            traffic.shares.get(&model.version).copied().unwrap_or(0)
        })
    }

    /// Returns the shares of a model's versions; `None` for one with a single version.
    pub(crate) fn shares(
        &self,
        name: &ModelName,
    ) -> Option<(&BTreeMap<ModelVersion, u32>, Sticky)> {
        let traffic = self.names.get(name)?;
        Some((&traffic.shares, traffic.record.sticky))
    }

    /// Returns the version that had the most requests before those that are on trial; `None` without a trial.
    pub(crate) fn former(&self, name: &ModelName) -> Option<ModelVersion> {
        self.names.get(name)?.former()
    }

    /// Returns true if a version has, or shall have, a share.
    pub(crate) fn is_used(&self, model: &ModelId) -> bool {
        self.names.get(&model.name).is_none_or(|traffic| {
            let version = model.version;
            traffic.target.share(version) > 0 || traffic.share(version) > 0
        })
    }

    /// Returns the demand for a version.
    pub(crate) fn demand(&self, model: &ModelId) -> Demand {
        let traffic = self.names.get(&model.name);
        traffic.map_or(Demand::Share(1.0), |t| t.demand(model.version))
    }

    /// Returns the versions that a version hands its requests over to, and for which its replicas stay as long as they are not
    /// superseded; none if it does not.
    pub(crate) fn successors(&self, model: &ModelId) -> Vec<ModelId> {
        let Some(traffic) = self.names.get(&model.name) else {
            return Vec::new();
        };
        if !traffic.donors.contains_key(&model.version) {
            return Vec::new();
        }
        let receivers = traffic.target.iter().map(|(version, _)| version);
        receivers
            .filter(|version| *version != model.version)
            .map(|version| ModelId {
                name: model.name.clone(),
                version,
            })
            .collect()
    }

    /// Returns the versions that were rolled back.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = (&ModelName, &RejectedVersion)> {
        let names = self.names.iter();
        names.filter_map(|(name, traffic)| Some((name, traffic.record.rejected.as_ref()?)))
    }
}

impl NamedTraffic {
    fn new(record: SplitRecord, target: Split) -> Self {
        Self {
            record,
            is_stored: true,
            shares: target.clone().into(),
            target,
            donors: BTreeMap::new(),
            proven: BTreeSet::new(),
            complete_since: None,
            idle_since: BTreeMap::new(),
            retired: BTreeSet::new(),
            counts: BTreeMap::new(),
        }
    }

    fn share(&self, version: ModelVersion) -> u32 {
        self.shares.get(&version).copied().unwrap_or(0)
    }

    fn former(&self) -> Option<ModelVersion> {
        let most = self.donors.iter().max_by_key(|(_, share)| **share);
        most.map(|(version, _)| *version)
    }

    fn next_due(&self) -> Option<Time> {
        let trial = (!self.donors.is_empty())
            .then_some(self.complete_since)
            .flatten()
            .map(|since| since + TRIAL);
        let retirements = self.idle_since.values().map(|since| *since + RETIREMENT);
        trial.into_iter().chain(retirements).min()
    }

    fn sample(&mut self, now: Time, name: &ModelName, counts: &BTreeMap<ModelId, RequestCounts>) {
        for (id, count) in counts.range(
            ModelId {
                name: name.clone(),
                version: ModelVersion::FIRST,
            }..=ModelId {
                name: name.clone(),
                version: ModelVersion::LAST,
            },
        ) {
            let counts = self.counts.entry(id.version).or_default();
            let new = count.since(counts.counted);
            counts.counted = *count;
            if now.saturating_since(counts.since) > MEMORY {
                counts.since = now;
                counts.ended /= 2.0;
                counts.within_slo /= 2.0;
            }
            // Those under way may be in time.
            counts.ended += (new.within_slo + new.missed) as f64;
            counts.within_slo += new.within_slo as f64;
            // A version that clients ask for by its number is not idle.
            let is_unused = self.idle_since.contains_key(&id.version);
            if new.arrived + new.hits > 0 && (self.retired.remove(&id.version) || is_unused) {
                self.idle_since.insert(id.version, now);
            }
        }
    }

    fn update(&mut self, now: Time, versions: &[ObservedVersion]) -> TrafficChange {
        let demands = |traffic: &Self| -> Vec<Demand> {
            let all = versions.iter();
            all.map(|v| traffic.demand(v.version)).collect()
        };
        let (shares, sticky, former) = (self.shares.clone(), self.record.sticky, self.former());
        let (demanded, record) = (demands(self), self.record.clone());
        let mut change = TrafficChange::default();
        self.forget_removed(versions);
        self.set_target(self.next_target(versions));
        if let Some(rejected) = self.failing() {
            self.roll_back(rejected.clone());
            self.set_target(self.next_target(versions));
            change.rejected = Some(rejected);
        }
        let total: f64 = versions.iter().map(|v| v.planned_rate).sum();
        let proven = versions.iter().filter(|v| {
            let part = f64::from(self.target.share(v.version).min(FIRST_STEP)) / 100.0;
            let was_planned = v.planned_rate > 0.5 * part * total;
            v.serving > 0 || (v.is_placeable && v.planned == 0 && was_planned && part > 0.0)
        });
        self.proven.extend(proven.map(|v| v.version));
        self.share_out(now, versions);
        if self
            .complete_since
            .is_some_and(|since| now.saturating_since(since) >= TRIAL)
        {
            change.released = std::mem::take(&mut self.donors).into_keys().collect();
            if self.record.split.is_none() {
                self.settle_on(self.target.largest());
            }
        }
        self.retire(now, versions, &shares);
        change.shares =
            shares != self.shares || sticky != self.record.sticky || former != self.former();
        change.demands = demanded != demands(self);
        if record != self.record || !self.is_stored {
            self.is_stored = true;
            change.record = Some(self.record.clone());
        }
        change
    }

    /// Forgets versions that are no longer registered.
    fn forget_removed(&mut self, versions: &[ObservedVersion]) {
        let exists = |version: &ModelVersion| versions.iter().any(|v| v.version == *version);
        self.shares.retain(|version, _| exists(version));
        self.donors.retain(|version, _| exists(version));
        self.proven.retain(exists);
        self.idle_since.retain(|version, _| exists(version));
        self.retired.retain(exists);
        self.counts.retain(|version, _| exists(version));
        let record = &mut self.record;
        let complete = |split: &Split| split.iter().all(|(version, _)| exists(&version));
        // A split over a version that is gone says nothing of the others: the version with the largest share has all of it.
        if let Some(split) = record.split.take_if(|split| !complete(split)) {
            let left = split.iter().filter(|(version, _)| exists(version));
            let largest = left.max_by_key(|(version, share)| (*share, *version));
            record.stable = largest.map_or(record.stable, |(version, _)| Some(version));
        }
        record.previous.take_if(|split| !complete(split));
        record
            .rejected
            .take_if(|rejected| !exists(&rejected.version));
        record.stable.take_if(|version| !exists(version));
    }

    /// Returns the shares that the versions shall have.
    fn next_target(&self, versions: &[ObservedVersion]) -> Split {
        if let Some(split) = &self.record.split {
            return split.clone();
        }
        let rejected = self
            .record
            .rejected
            .as_ref()
            .map(|rejected| rejected.version);
        let candidates = versions.iter().rev().filter(|v| v.is_servable);
        let mut candidates = candidates.filter(|v| Some(v.version) > rejected);
        let newest = candidates.next().map(|v| v.version);
        let fallback = || versions.last().map(|v| v.version);
        let chosen = match (newest, self.record.stable) {
            (Some(newest), Some(stable)) => newest.max(stable),
            (Some(version), None) | (None, Some(version)) => version,
            (None, None) => fallback().unwrap_or(ModelVersion::FIRST),
        };
        Split::all_to(chosen)
    }

    /// Changes the target. The versions that lose by it keep what they have until the others can carry it.
    fn set_target(&mut self, target: Split) {
        if target == self.target {
            return;
        }
        self.target = target;
        self.complete_since = None;
        let had = std::mem::take(&mut self.donors).into_iter();
        let had = had.chain(
            self.shares
                .iter()
                .map(|(version, share)| (*version, *share)),
        );
        let losers = had.filter(|(version, share)| *share > self.target.share(*version));
        self.donors = losers.collect();
    }

    /// Gives every version of the target what its serving replicas are planned to carry, and the rest to those that had it.
    fn share_out(&mut self, now: Time, versions: &[ObservedVersion]) {
        let is_serving = |version: ModelVersion| {
            let mut all = versions.iter();
            all.any(|v| v.version == version && v.serving > 0)
        };
        let total: f64 = versions.iter().map(|v| v.planned_rate).sum();
        let mut complete = true;
        let mut shares: BTreeMap<ModelVersion, u32> = BTreeMap::new();
        for (version, share) in self.target.iter() {
            let observed = versions.iter().find(|v| v.version == version);
            let carried = observed.map_or(0, |v| carried(v, share, total));
            complete &= carried == share;
            shares.insert(version, carried);
        }
        let rest = 100 - shares.values().sum::<u32>();
        let rejected = self
            .record
            .rejected
            .as_ref()
            .map(|rejected| rejected.version);
        let donors = self
            .donors
            .iter()
            .map(|(version, share)| (*version, *share));
        let donors = donors.filter(|(v, _)| is_serving(*v) && Some(*v) != rejected);
        let takers: [Vec<(ModelVersion, u32)>; 3] = [
            donors.collect(),
            self.target.iter().filter(|(v, _)| is_serving(*v)).collect(),
            versions
                .iter()
                .filter(|v| v.serving > 0)
                .map(|v| (v.version, 1))
                .collect(),
        ];
        if let Some(takers) = takers.iter().find(|takers| !takers.is_empty()) {
            distribute(rest, takers, &mut shares);
        } else {
            shares = self.target.clone().into();
        }
        shares.retain(|_, share| *share > 0);
        self.shares = shares;
        if !complete {
            self.complete_since = None;
        } else if self.complete_since.is_none() {
            self.complete_since = Some(now);
        }
    }

    /// Notes which versions get no requests, and since when. `before` are the shares before the update.
    fn retire(
        &mut self,
        now: Time,
        versions: &[ObservedVersion],
        before: &BTreeMap<ModelVersion, u32>,
    ) {
        for observed in versions {
            let version = observed.version;
            if self.share(version) > 0 || self.target.share(version) > 0 {
                self.idle_since.remove(&version);
                self.retired.remove(&version);
            } else if !self.idle_since.contains_key(&version) && !self.retired.contains(&version) {
                if before.contains_key(&version) || observed.planned > 0 {
                    self.idle_since.insert(version, now);
                } else {
                    self.retired.insert(version);
                }
            }
        }
        let is_over = |since: &Time| now.saturating_since(*since) >= RETIREMENT;
        let ended = self.idle_since.extract_if(.., |_, since| is_over(since));
        self.retired.extend(ended.map(|(version, _)| version));
    }

    /// Makes a version the one that has all requests until a newer one has taken over.
    fn settle_on(&mut self, version: ModelVersion) {
        if self.record.stable != Some(version) {
            self.record.previous = self.record.stable.map(Split::all_to);
            self.record.stable = Some(version);
        }
    }

    fn demand(&self, version: ModelVersion) -> Demand {
        let share = self.target.share(version);
        let serving_donors = || self.shares.iter().any(|(v, _)| self.target.share(*v) == 0);
        let is_proven = |version: &ModelVersion| self.proven.contains(version) || !serving_donors();
        let first = |version: &ModelVersion, share: u32| {
            if is_proven(version) {
                share
            } else {
                share.min(FIRST_STEP)
            }
        };
        let mut wanted = f64::from(first(&version, share));
        // What is not planned for versions that have not shown that they start is planned as before.
        let shares = self.target.iter();
        let unproven: u32 = shares.map(|(v, share)| share - first(&v, share)).sum();
        let excess = |version: ModelVersion| {
            let share = self.share(version);
            share.saturating_sub(self.target.share(version))
        };
        let all_excess: u32 = self.shares.keys().map(|v| excess(*v)).sum();
        if unproven > 0 && all_excess > 0 {
            wanted += f64::from(unproven * excess(version)) / f64::from(all_excess);
        }
        if wanted > 0.0 {
            return Demand::Share(wanted / 100.0);
        }
        if self.retired.contains(&version) {
            Demand::Retired
        } else {
            Demand::Standby
        }
    }

    /// Returns the version that answers significantly fewer requests within the SLO than the one before it.
    fn failing(&self) -> Option<RejectedVersion> {
        let baseline = self.former().unwrap_or_else(|| self.target.largest());
        let newer = self.target.iter().map(|(version, _)| version);
        let mut newer = newer.filter(|version| *version > baseline);
        let before = self.counts.get(&baseline)?;
        newer.find_map(|version| {
            let counts = self.counts.get(&version)?;
            counts.is_worse_than(before).then(|| RejectedVersion {
                version,
                reason: format!(
                    "{:.0} % of its requests were answered within the SLO, and {:.0} % of those of version {baseline}",
                    counts.part() * 100.0,
                    before.part() * 100.0
                ),
            })
        })
    }

    /// Returns to the shares before the last change.
    fn roll_back(&mut self, rejected: RejectedVersion) {
        self.counts.remove(&rejected.version);
        let baseline = self.former().unwrap_or_else(|| self.target.largest());
        if let Some(split) = self.record.split.take() {
            let previous = self.record.previous.take();
            let previous = previous.filter(|previous| previous.share(rejected.version) == 0);
            self.record.split = Some(previous.unwrap_or_else(|| Split::all_to(baseline)));
            self.record.previous = Some(split);
        } else {
            self.record.stable = Some(baseline);
        }
        self.record.rejected = Some(rejected);
    }
}

impl VersionCounts {
    /// Returns the part of the requests that were answered within the SLO.
    fn part(&self) -> f64 {
        (self.within_slo / self.ended).min(1.0)
    }

    /// Returns true if significantly fewer requests were answered within the SLO than by the other version: the test of two
    /// proportions with a pooled variance (R. G. Newcombe, "Interval estimation for the difference between independent proportions",
    /// Statistics in Medicine 17, 1998, method 1).
    fn is_worse_than(&self, before: &Self) -> bool {
        if self.ended < LEAST_REQUESTS || before.ended < LEAST_REQUESTS {
            return false;
        }
        let difference = before.part() - self.part();
        let all = self.ended + before.ended;
        let pooled = ((self.within_slo + before.within_slo) / all).min(1.0);
        let variance = pooled * (1.0 - pooled) * (1.0 / self.ended + 1.0 / before.ended);
        difference > LEAST_DIFFERENCE && difference > SIGNIFICANT * variance.sqrt()
    }
}

/// Returns the part of its share, in percent, that the serving replicas of a version are planned to carry.
fn carried(version: &ObservedVersion, share: u32, total_rate: f64) -> u32 {
    if version.planned == 0 || total_rate <= 0.0 {
        return 0;
    }
    let planned = version.planned_rate / total_rate * 100.0;
    // A part of a percent is within the rounding of shares.
    let planned = if planned >= f64::from(share) - 1.0 {
        f64::from(share)
    } else {
        planned
    };
    let serving = version.planned_serving as f64 / version.planned as f64;
    (planned * serving) as u32
}

/// Adds percent to the shares of the takers, in proportion to their weights; what rounding leaves goes to the first.
fn distribute(
    percent: u32,
    takers: &[(ModelVersion, u32)],
    shares: &mut BTreeMap<ModelVersion, u32>,
) {
    let all: u32 = takers.iter().map(|(_, weight)| weight).sum();
    let mut left = percent;
    for (version, weight) in takers {
        let part = percent * weight / all.max(1);
        *shares.entry(*version).or_default() += part;
        left -= part;
    }
    if let Some((first, _)) = takers.first() {
        *shares.entry(*first).or_default() += left;
    }
}

#[cfg(test)]
mod tests;
