//! The model or the family that a request names.
//!
//! A family has a name of its own, and no versions: of each of its variants, the split of that model chooses the version, as for a request that
//! names the model. The request then goes to the most accurate of them, and from there to the next where one cannot answer in time.
//!
//! A version on trial has the one before it for the same purpose: as long as it must show that it carries its requests, none is lost that the former
//! version can answer. A variant of a family has not: who names it means that model alone.

use std::{iter, sync::Arc, time::Duration};

use packhorse_cluster::{ModelName, Time, by_accuracy};
use packhorse_serving::{Refusal, TenantKey};

use super::served_model::ServedModel;

/// The model or the family that a request names.
#[derive(Clone, Debug)]
pub(crate) struct RequestedModel {
    /// The family; none if the request names a model.
    pub(crate) family: Option<ModelName>,
    /// The model, or the most accurate variant of the family.
    pub(crate) model: Arc<ServedModel>,
    /// The other variants, the most accurate first, or the version before one on trial.
    others: Vec<Arc<ServedModel>>,
}

impl RequestedModel {
    /// Creates the model that a request names, with the version before it if it is on trial.
    pub(super) fn model(model: Arc<ServedModel>, former: Option<Arc<ServedModel>>) -> Self {
        Self {
            family: None,
            model,
            others: former.into_iter().collect(),
        }
    }

    /// Creates the family that a request names; `None` without a variant.
    pub(super) fn family(family: ModelName, mut variants: Vec<Arc<ServedModel>>) -> Option<Self> {
        let accuracy = |model: &ServedModel| Some(model.spec.variant.as_ref()?.accuracy);
        variants.retain(|variant| accuracy(variant).is_some());
        variants.sort_by(|a, b| match (accuracy(a), accuracy(b)) {
            (Some(a), Some(b)) => by_accuracy(a, b),
            _ => std::cmp::Ordering::Equal,
        });
        let mut variants = variants.into_iter();
        Some(Self {
            family: Some(family),
            model: variants.next()?,
            others: variants.collect(),
        })
    }

    /// Returns the name that the client used.
    pub(crate) fn name(&self) -> &ModelName {
        self.family.as_ref().unwrap_or(&self.model.id().name)
    }

    /// Returns the models that may answer, the most accurate first.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        iter::once(&self.model).chain(&self.others)
    }

    /// Returns true if other models may answer in place of the first.
    pub(crate) fn has_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns the model for which a request counts that none of them answers: of a family the last that is tried. A version on trial is judged by all
    /// requests that it got.
    pub(crate) fn last(&self) -> &Arc<ServedModel> {
        let others = self.others.last();
        others
            .filter(|_| self.family.is_some())
            .unwrap_or(&self.model)
    }

    /// Returns true if a replica takes the requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.models().any(|model| model.is_ready())
    }

    /// Returns true if replicas are being connected to.
    pub(crate) fn is_loading(&self) -> bool {
        self.models().any(|model| model.is_loading())
    }

    /// Returns the reason why the engine would refuse any request of a tenant now, as far as that is known without the request.
    pub(crate) fn refusal(&self, tenant: TenantKey) -> Option<Refusal> {
        let mut refusals = self.models().map(|model| model.refusal(tenant));
        let full = |a, b| match (a, b) {
            (full @ Refusal::QueueFull { .. }, _) => full,
            (_, other) => other,
        };
        // Without a refusal of one of them there is none.
        refusals.try_fold(None, |known, refusal| {
            let refusal = refusal?;
            Some(Some(known.map_or(refusal, |known| full(known, refusal))))
        })?
    }

    /// Returns true if each queue is so long that a tenant's request would wait in vain, see [`ServedModel::is_hopeless`].
    pub(crate) fn is_hopeless(&self, now: Time, arrived: Time, tenant: TenantKey) -> bool {
        let mut ready = self.models().filter(|model| model.is_ready()).peekable();
        ready.peek().is_some() && ready.all(|model| model.is_hopeless(now, arrived, tenant))
    }

    /// Returns the time after which a refused client may try again.
    pub(crate) fn retry_after(&self, now: Time) -> Duration {
        let times = self.models().map(|model| model.retry_after(now));
        times.min().unwrap_or_default()
    }

    /// Notes the time that a request allows for its answer.
    pub(super) fn record_patience(&self, now: Time, allowed: Duration) {
        for model in self.models() {
            model.load.record_patience(now, allowed);
        }
    }
}
