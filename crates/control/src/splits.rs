//! The splits of requests over versions: the commands of admins, and what follows when requests move.

use std::sync::Arc;

use packhorse_cluster::{ModelId, ModelName, Split, Time};

use crate::{
    command::{CommandError, SplitChange},
    controller::Controller,
    effect::{ServeChange, VersionShares, Write},
    notice::Notice,
    pending::{Behind, Change, Pending},
    plan_reason::PlanReason,
    record::SplitRecord,
    state::State,
    traffic::ObservedVersion,
};

impl Controller {
    /// Checks a change of a split. `None` if nothing changes.
    pub(crate) fn change_split(
        &self,
        name: &ModelName,
        change: SplitChange,
    ) -> Result<Option<(Write, Change)>, CommandError> {
        self.state.models.find(name, None)?;
        let before = self.state.traffic.record(name);
        let mut record = before.clone();
        match change {
            SplitChange::Set(split, sticky) => {
                record.sticky = sticky.unwrap_or(record.sticky);
                match split {
                    Some(Some(split)) => self.set_split(&mut record, split)?,
                    Some(None) => {
                        let target = self.split_target(name);
                        record.stable = Some(target.largest());
                        if record.split.take().is_some() {
                            record.previous = Some(target);
                        }
                        record.rejected = None;
                    }
                    None => {}
                }
            }
            SplitChange::Promote(version) => {
                self.set_split(&mut record, Split::all_to(version))?;
            }
            SplitChange::RollBack => match self.rollback_split(name) {
                Some(earlier) => {
                    self.set_split(&mut record, earlier)?;
                    // A second one must not bring back what the first has taken away.
                    record.previous = None;
                }
                None if record.split.is_some() => {}
                None => return Err(CommandError::NoEarlierSplit(name.clone())),
            },
        }
        if record == before {
            return Ok(None);
        }
        let record = Box::new(record);
        Ok(Some((
            Write::UpsertSplit(record.clone()),
            Change::Split(record),
        )))
    }

    /// Returns the shares that a rollback brings; `None` if there are none to return to.
    pub fn rollback_split(&self, name: &ModelName) -> Option<Split> {
        let record = self.state.traffic.record(name);
        let earlier = match (&record.split, record.stable) {
            // A version that is taking over is stopped.
            (None, Some(stable)) if self.split_target(name) != Split::all_to(stable) => {
                Split::all_to(stable)
            }
            _ => record.previous?,
        };
        let is_there = |version| self.state.models.find(name, Some(version)).is_ok();
        let are_there = earlier.iter().all(|(version, _)| is_there(version));
        are_there.then_some(earlier)
    }

    fn set_split(&self, record: &mut SplitRecord, split: Split) -> Result<(), CommandError> {
        for (version, _) in split.iter() {
            self.state.models.find(&record.name, Some(version))?;
        }
        let target = self.split_target(&record.name);
        if target != split {
            record.previous = Some(target);
        }
        let rejected = record.rejected.take();
        record.rejected = rejected.filter(|rejected| split.share(rejected.version) == 0);
        record.split = Some(split);
        Ok(())
    }

    /// Returns the shares that the versions of a model shall have.
    fn split_target(&self, name: &ModelName) -> Split {
        let target = self.state.traffic.target(name).cloned();
        let newest = || self.state.models.versions(name).next_back();
        target.unwrap_or_else(|| {
            Split::all_to(newest().map_or(packhorse_cluster::ModelVersion::FIRST, |id| id.version))
        })
    }

    /// Moves requests between the versions of the models that something has changed for.
    pub(crate) fn settle_traffic(&mut self, now: Time) {
        for name in self.state.traffic.take_touched(now) {
            let versions = observed_versions(&self.state, &name);
            let before = self.state.traffic.record(&name).stable;
            let change = self.state.traffic.update(now, &name, &versions);
            let id = |version| ModelId {
                name: name.clone(),
                version,
            };
            let stable = self.state.traffic.record(&name).stable;
            if let (Some(before), Some(stable)) = (before, stable)
                && before < stable
            {
                let text = format!(
                    "version {stable} of model {name} has taken over from version {before}"
                );
                self.tell(Notice::Rerouted(id(stable), text));
            }
            if let Some(rejected) = change.rejected {
                let version = rejected.version;
                self.tell(Notice::RolledBack(id(version), rejected.reason));
            }
            for version in change.released {
                self.state.rollout.touch_model(&id(version));
            }
            if let Some(record) = change.record {
                // Until it is stored, the requests move again after a restart.
                let behind = Behind::Split(name.clone());
                self.store(
                    Write::UpsertSplit(Box::new(record)),
                    Pending::Behind(behind),
                );
            }
            if change.shares {
                self.serve_split(&name);
                for observed in &versions {
                    self.announcements.changed_model(&id(observed.version));
                }
            }
            if change.demands {
                self.request_plan(now, PlanReason::SplitChanged(name));
            }
        }
    }

    /// Tells how the requests of a model are split over its versions by an admin.
    pub(crate) fn tell_split(&mut self, name: &ModelName) {
        let id = ModelId {
            name: name.clone(),
            version: self.split_target(name).largest(),
        };
        let text = match self.state.traffic.record(name).split {
            Some(split) => format!("requests for model {name} go to {split}"),
            None => format!("the newest version of model {name} takes over by itself"),
        };
        self.tell(Notice::Rerouted(id, text));
    }

    /// Has the data plane split the requests of a model over its versions.
    pub(crate) fn serve_split(&mut self, name: &ModelName) {
        let Some((shares, sticky)) = self.state.traffic.shares(name) else {
            return;
        };
        let shares = VersionShares {
            shares: shares.clone(),
            sticky,
            former: self.state.traffic.former(name),
        };
        self.serve(ServeChange::Split(name.clone(), shares));
    }
}

/// Returns the versions of a model, ascending, and what is observed of them.
fn observed_versions(state: &State, name: &ModelName) -> Vec<ObservedVersion> {
    let versions = state.models.versions(name);
    let observed = versions.map(|id| {
        let model = state.models.get(id);
        let program = model.map(|model| &model.program);
        let replicas = state.rollout.of_model(id);
        let replicas =
            replicas.filter(|r| program.is_some_and(|p| Arc::as_ref(p) == &*r.spec.model));
        let mut observed = ObservedVersion {
            version: id.version,
            is_servable: model.is_some_and(|model| model.failure.is_none()),
            is_placeable: state.is_profiled(id) && state.exclusions.of_model(id).next().is_none(),
            planned: 0,
            planned_serving: 0,
            serving: 0,
            planned_rate: state
                .plan
                .forecasts
                .get(id)
                .map_or(0.0, |forecast| forecast.rate.get()),
        };
        for replica in replicas {
            let serves = usize::from(state.serves(replica.id));
            observed.serving += serves;
            if replica.is_planned() {
                observed.planned += 1;
                observed.planned_serving += serves;
            }
        }
        observed
    });
    observed.collect()
}
