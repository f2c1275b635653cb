//! Dry runs of the commands of admins: what a change makes of the input of a policy, found on a copy of the controller. The copy takes
//! the change by the same functions as the controller itself, and what it wants carried out is dropped with it.

use std::sync::Arc;

use packhorse_cluster::{DeviceKind, ModelId, Profile, Program, Time};

use crate::{
    command::{Command, CommandError},
    controller::Controller,
    pending::Change,
    plan_reason::PlanReason,
    planning_input::PlanningInput,
};

/// A checked change that is not made, with a copy of the controller to make it in. It can be used on another thread.
#[derive(Debug)]
pub struct DryRun {
    copy: Box<Controller>,
    changes: Vec<Change>,
    now: Time,
}

/// The inputs of a policy without a change and with it.
#[derive(Debug)]
pub struct ChangedInput {
    /// The input as it is.
    pub before: PlanningInput,
    /// The input after the change.
    pub after: PlanningInput,
}

/// The reason why a registration cannot be planned for: nothing is known of the time and memory that the model needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "model {0} has no profile yet, so that there is no plan with it; it takes its place once it is measured or estimated"
)]
pub struct NoProfile(pub ModelId);

impl Controller {
    /// Checks commands of an admin as [`Self::dry_run`] does, without a copy to make them in.
    ///
    /// # Errors
    /// If one of the commands would be refused.
    pub fn check_all(
        &self,
        now: Time,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<(), CommandError> {
        self.checked_changes(now, commands).map(drop)
    }

    /// Checks commands of an admin that are executed one after the other, as if they were executed now. Changes nothing.
    ///
    /// # Errors
    /// If one of the commands would be refused.
    pub fn dry_run(
        &self,
        now: Time,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<DryRun, CommandError> {
        let changes = self.checked_changes(now, commands)?;
        Ok(DryRun {
            copy: Box::new(self.clone()),
            changes,
            now,
        })
    }

    fn checked_changes(
        &self,
        now: Time,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<Vec<Change>, CommandError> {
        let checked = commands
            .into_iter()
            .map(|command| Ok(self.check(now, command)?.map(|(_, change)| change)));
        let changes = checked.filter_map(Result::transpose);
        changes.collect()
    }
}

impl DryRun {
    /// Makes the change in the copy. Returns the inputs of a policy without it and with it; `None` if it is no reason to plan anew.
    ///
    /// # Errors
    /// If the change registers a model that has no profile, and no model with the same program has one.
    pub fn planning_inputs(self) -> Result<Option<ChangedInput>, NoProfile> {
        let Self {
            mut copy,
            changes,
            now,
        } = self;
        let policy = copy.state.policy.clone();
        let before = copy.planning_input(policy, PlanReason::Preview.into());
        // The reasons for a plan that is due already are none of the change's.
        copy.planning.take_reasons();
        for change in changes {
            copy.make(now, change)?;
        }
        copy.settle(now);
        // A drain with a deadline is looked at as it ends.
        copy.drains.end_due(Time::MAX);
        let reasons = copy.planning.take_reasons();
        if reasons.is_empty() {
            return Ok(None);
        }
        let policy = copy.state.policy.clone();
        let after = copy.planning_input(policy, reasons);
        Ok(Some(ChangedInput { before, after }))
    }
}

impl Controller {
    /// Makes a change. A model that it registers has the profiles of a registered one with the same program, if there is one.
    fn make(&mut self, now: Time, change: Change) -> Result<(), NoProfile> {
        let registered = match &change {
            Change::Registered(spec, _) | Change::Replaced(spec, _) => Some(spec.program.clone()),
            _ => None,
        };
        let known = registered.as_ref().map(|p| self.profiles_of_program(p));
        self.apply_change(now, change);
        let Some(Program { model, .. }) = registered else {
            return Ok(());
        };
        for (kind, profile) in known.into_iter().flatten() {
            if self.state.profiles.get(&model, &kind).is_none() {
                // It need not be measured before it is planned for.
                self.state.measurements.remove(&model, &kind);
                let profiles = &mut self.state.profiles;
                profiles.insert(model.clone(), kind, profile);
            }
        }
        if self.state.profiles.of_model(&model).next().is_none() {
            return Err(NoProfile(model));
        }
        Ok(())
    }

    /// Returns the profiles of a registered model with the same program.
    fn profiles_of_program(&self, program: &Program) -> Vec<(DeviceKind, Arc<Profile>)> {
        let models = self.state.models.iter();
        let same = models.filter(|(id, model)| {
            model.program.artifact == program.artifact && {
                let renamed = Program {
                    model: (*id).clone(),
                    ..program.clone()
                };
                *model.program == renamed
            }
        });
        let mut profiles = same.map(|(id, _)| {
            let profiles = self.state.profiles.of_model(id);
            let profiles = profiles.map(|(kind, profile)| (kind.clone(), Arc::clone(profile)));
            profiles.collect::<Vec<_>>()
        });
        profiles
            .find(|profiles| !profiles.is_empty())
            .unwrap_or_default()
    }
}
