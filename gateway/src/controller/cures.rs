//! The cures of models that the plan does not serve: changes with each of which the policy was tried, and serves the model.
//!
//! They are found beside the control plane, one search at a time, for the current plan: they are those of `GET /v1/plan?explain=true`.

use std::{collections::BTreeMap, error::Error, time::Duration};

use packhorse_api::{PlanPreviewRequest, PlanView, PreviewModel, events};
use packhorse_cluster::{Change, Generation, ModelId, Remedy, RequestsPerSecond, Time};
use packhorse_control::{Controller, Finding, Problem, Subject};

use super::cure_previews::{preview_of_devices, preview_of_model, unchanged_model};

/// The time limit of a search.
pub(super) const BUDGET: Duration = Duration::from_secs(5);
/// The shortest time between the begins of two searches for one plan: rates change meanwhile.
const AGAIN: Duration = Duration::from_mins(5);
/// The times of a search for which none begins after it, so that it takes a twentieth of a core at most.
const PAUSES: u32 = 19;

/// The part of its rate by which that of a model may change before its cures are forgotten.
const SAME_RATE: f64 = 0.1;

/// The cures that are known.
#[derive(Debug, Default)]
pub(super) struct VerifiedCures {
    /// The plan that they are for, and the time at which the search for them began.
    searched: Option<(Generation, Time)>,
    /// The rates that the models were to be planned for when it began.
    rates: BTreeMap<ModelId, RequestsPerSecond>,
    remedies: BTreeMap<ModelId, Vec<Remedy>>,
    is_searching: bool,
    /// The earliest time of the next search.
    due: Time,
}

impl VerifiedCures {
    /// Returns true, once, if cures are to be searched for: some finding wants one, and those that are known are for another plan or old.
    pub(super) fn begin(&mut self, now: Time, controller: &Controller) -> bool {
        let Some(plan) = controller.plan().map(|plan| plan.generation) else {
            return false;
        };
        let findings = controller.findings();
        let is_known = self
            .searched
            .is_some_and(|(known, began)| known == plan && now.saturating_since(began) < AGAIN);
        let is_wanted = || {
            findings
                .iter()
                .any(|finding| cured_model(finding).is_some())
        };
        if self.is_searching || is_known || now < self.due || !is_wanted() {
            return false;
        }
        if self.searched.is_none_or(|(known, _)| known != plan) {
            self.remedies.clear();
        }
        self.is_searching = true;
        self.searched = Some((plan, now));
        let models = controller.models();
        let rates = models.filter_map(|(id, _)| Some((id.clone(), controller.planned_rate(id)?)));
        self.rates = rates.collect();
        true
    }

    /// Takes what a search found.
    pub(super) fn end(&mut self, now: Time, remedies: BTreeMap<ModelId, Vec<Remedy>>) {
        self.is_searching = false;
        let began = self.searched.map_or(now, |(_, began)| began);
        self.due = now + PAUSES * now.saturating_since(began);
        self.remedies = remedies;
    }

    /// Returns the cure of a finding, if one is known for the present plan and rate.
    pub(super) fn of(&self, controller: &Controller, finding: &Finding) -> Option<events::Cure> {
        let (known, _) = self.searched?;
        // Without a node the plan is still that of before.
        let is_carried_out = controller.nodes().any(|(_, node)| node.takes_replicas());
        if !is_carried_out || controller.plan()?.generation != known {
            return None;
        }
        let model = cured_model(finding)?;
        let remedies = self.remedies.get(model)?;
        let (then, now) = (self.rates.get(model)?, controller.planned_rate(model)?);
        if (now.get() - then.get()).abs() > SAME_RATE * then.get() {
            return None;
        }
        let rows = controller.rows_per_request(model).unwrap_or(1.0);
        let changes = remedies.iter().map(|one| change_text(&one.change, rows));
        let changes: Vec<String> = changes.collect();
        let preview = remedies.iter().find_map(|one| preview(model, &one.change));
        Some(events::Cure {
            text: format!("any of these would suffice: {}", changes.join("; ")),
            preview,
        })
    }
}

/// Returns the change as text, for a model whose requests have this mean number of rows.
fn change_text(change: &Change, rows: f64) -> String {
    match change {
        Change::Rate { rate } if rows > 1.05 => {
            format!(
                "at most {:.1} requests/s of {rows:.1} rows",
                rate.get() / rows
            )
        }
        _ => change.to_string(),
    }
}

/// Returns the remedies in an explained plan that a preview can show; none if it could not be explained.
pub(super) fn remedies<E: Error + 'static>(
    explained: Result<PlanView, E>,
) -> BTreeMap<ModelId, Vec<Remedy>> {
    let models = explained.inspect_err(|error| {
        tracing::debug!(error = error as &dyn Error, "no cures are known");
    });
    let models = models.map(|plan| plan.models).unwrap_or_default();
    let remedies = models.into_iter().filter_map(|model| {
        let id = model.id();
        let mut remedies = model.explanation?.remedies;
        remedies.retain(|one| preview(&id, &one.change).is_some());
        Some((id, remedies))
    });
    remedies
        .filter(|(_, remedies)| !remedies.is_empty())
        .collect()
}

/// Returns the model of a finding that another plan may cure.
fn cured_model(finding: &Finding) -> Option<&ModelId> {
    let is_short = matches!(
        finding.problem,
        Problem::ModelShort | Problem::ModelNotServed
    );
    match &finding.subject {
        Subject::Model(id) if is_short => Some(id),
        _ => None,
    }
}

/// Returns the request for a preview of the plan after a change; `None` if there is none for it.
fn preview(model: &ModelId, change: &Change) -> Option<PlanPreviewRequest> {
    let unchanged = unchanged_model(model);
    let changed = match change {
        Change::AddDevices { kind, count } => {
            return Some(preview_of_devices(kind, i32::try_from(*count).ok()?));
        }
        Change::Slo { slo } => PreviewModel {
            slo_ms: Some(slo.as_secs_f64() * 1e3),
            ..unchanged
        },
        Change::Rate { rate } => PreviewModel {
            rate_rps: Some(*rate),
            ..unchanged
        },
        Change::Priority { priority } => PreviewModel {
            priority: Some(*priority),
            ..unchanged
        },
        Change::MaxBatchSize { .. } => return None,
    };
    Some(preview_of_model(changed))
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Priority;

    use super::*;

    #[test]
    fn a_rate_is_said_in_requests_as_they_come() {
        let rate = RequestsPerSecond::new(66.4).unwrap();
        let text = |rows| change_text(&Change::Rate { rate }, rows);
        assert_eq!(text(1.0), "at most 66.4 requests/s");
        assert_eq!(text(16.0), "at most 4.2 requests/s of 16.0 rows");
    }

    #[test]
    fn every_change_that_a_preview_can_show_is_in_its_request() {
        let model: ModelId = "m:2".parse().unwrap();
        let shown = |change| preview(&model, &change);
        let devices = Change::AddDevices {
            kind: "T4".parse().unwrap(),
            count: 3,
        };
        let added = shown(devices).unwrap();
        assert_eq!((added.devices[0].count, added.models.len()), (3, 0));
        let slo = Duration::from_millis(700);
        let slo = shown(Change::Slo { slo }).unwrap().models.remove(0);
        assert_eq!(
            (slo.version, slo.slo_ms, slo.rate_rps),
            (Some(model.version), Some(700.0), None)
        );
        let rate = RequestsPerSecond::new(5.0).unwrap();
        let changed = shown(Change::Rate { rate }).unwrap();
        assert_eq!(changed.models[0].rate_rps, Some(rate));
        let priority = Priority::default();
        let changed = shown(Change::Priority { priority }).unwrap();
        assert_eq!(changed.models[0].priority, Some(priority));
        assert_eq!(shown(Change::MaxBatchSize { max_batch_size: 4 }), None);
    }
}
