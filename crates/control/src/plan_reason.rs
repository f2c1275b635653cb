//! The reasons for which a plan is requested, and their text.

use std::fmt;

use packhorse_cluster::{
    DeviceId, DeviceKind, Discipline, ModelId, ModelName, NodeName, RequestsPerSecond, Scheduling,
};

/// A reason for which a plan is requested. Its `Display` text is stored with the plan and shown by the API.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanReason {
    /// The gateway started.
    GatewayStarted,
    /// The API requested a preview.
    Preview,
    /// The API requested a preview with another policy, options or discipline.
    PreviewOfPolicy,
    /// A node got its lease.
    NodeJoined(NodeName),
    /// The lease of a node expired.
    NodeLost(NodeName),
    /// A node was removed.
    NodeRemoved(NodeName),
    /// A node reported other devices than before.
    DevicesChanged(NodeName),
    /// An admin changed the scheduling of a node.
    NodeScheduled(NodeName, Scheduling),
    /// A model was registered.
    ModelRegistered(ModelId),
    /// The SLO or the rate of a model was changed.
    ModelChanged(ModelId),
    /// The requests of a model move from one version to another.
    SplitChanged(ModelName),
    /// A model was removed.
    ModelRemoved(ModelId),
    /// A model was found to be unservable as it is registered.
    ModelFailed(ModelId),
    /// A model was measured on a kind of device.
    ModelMeasured(ModelId, DeviceKind),
    /// The profiles of a model were estimated from the operators of its program.
    ModelEstimated(ModelId),
    /// A model could not be measured on a kind of device, for which it was estimated.
    MeasurementFailed(ModelId, DeviceKind),
    /// Profiles were imported.
    ProfilesImported,
    /// Measured pairs of a kind of device were imported.
    PairsImported(DeviceKind),
    /// A worker found memory for smaller batches than planned.
    BatchLimit {
        /// The model.
        model: ModelId,
        /// The kind of device.
        kind: DeviceKind,
        /// The largest number of rows in one batch that there is memory for.
        rows: u32,
        /// The planned batch size.
        planned: u32,
    },
    /// Batches of a model that there was no memory for are tried again.
    LargerBatches {
        /// The model.
        model: ModelId,
        /// The kind of device.
        kind: DeviceKind,
    },
    /// The requests of a model arrive at another rate than the current plan assumes. Each counts as many times as it has rows.
    Rate {
        /// The model.
        model: ModelId,
        /// The rate to plan for now.
        rate: RequestsPerSecond,
        /// The rate that the current plan assumes.
        assumed: RequestsPerSecond,
    },
    /// A replica does not become ready.
    ReplicaFailed {
        /// The model.
        model: ModelId,
        /// The device.
        device: DeviceId,
    },
    /// A model whose replica did not become ready on a device is tried there again.
    Retry {
        /// The model.
        model: ModelId,
        /// The device.
        device: DeviceId,
    },
    /// The plan leaves a draining node replicas beyond the time that it was given.
    DrainOverdue(NodeName),
    /// The time between two plans has passed.
    Interval,
    /// The batches of a model are slower or faster than the current plan assumes.
    Drift {
        /// The model.
        model: ModelId,
        /// The observed batch time over the assumed one.
        ratio: f64,
    },
    /// Fewer requests of a model are answered within the SLO than the current plan assumes.
    Late {
        /// The model.
        model: ModelId,
        /// The observed goodput over the predicted one.
        ratio: f64,
    },
    /// The placement policy was changed to the one of this name.
    PolicyChanged(String),
    /// The options of the placement policy were changed.
    OptionsChanged,
    /// The dispatch discipline was changed.
    DisciplineChanged(Discipline),
}

impl PlanReason {
    /// Returns true if the reason is an observation, which does not by itself make the current plan wrong: a new plan must be worth
    /// its cost.
    pub(crate) fn is_observation(&self) -> bool {
        matches!(
            self,
            Self::Rate { .. }
                | Self::Drift { .. }
                | Self::Late { .. }
                | Self::Interval
                | Self::GatewayStarted
        )
    }
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GatewayStarted => write!(f, "the gateway started"),
            Self::Preview | Self::PreviewOfPolicy => write!(f, "a preview"),
            Self::NodeJoined(node) => write!(f, "node {node} joined"),
            Self::NodeLost(node) => write!(f, "node {node} was lost"),
            Self::NodeRemoved(node) => write!(f, "node {node} was removed"),
            Self::DevicesChanged(node) => write!(f, "the devices of node {node} changed"),
            Self::NodeScheduled(node, scheduling) => {
                let verb = match scheduling {
                    Scheduling::Open => "uncordoned",
                    Scheduling::Cordoned => "cordoned",
                    Scheduling::Draining => "drained",
                };
                write!(f, "node {node} was {verb}")
            }
            Self::ModelRegistered(model) => write!(f, "model {model} was registered"),
            Self::ModelChanged(model) => write!(f, "model {model} was changed"),
            Self::SplitChanged(name) => {
                write!(f, "the requests of model {name} move to another version")
            }
            Self::ModelRemoved(model) => write!(f, "model {model} was removed"),
            Self::ModelFailed(model) => write!(f, "model {model} failed"),
            Self::ModelMeasured(model, kind) => write!(f, "model {model} was measured on {kind}"),
            Self::ModelEstimated(model) => {
                write!(f, "the profiles of model {model} were estimated")
            }
            Self::MeasurementFailed(model, kind) => {
                write!(f, "model {model} could not be measured on {kind}")
            }
            Self::ProfilesImported => write!(f, "profiles were imported"),
            Self::PairsImported(kind) => write!(f, "measured pairs of {kind} were imported"),
            Self::BatchLimit {
                model,
                kind,
                rows,
                planned,
            } => write!(
                f,
                "model {model} has memory for batches of {rows} on {kind}, not of {planned}"
            ),
            Self::LargerBatches { model, kind } => {
                write!(
                    f,
                    "larger batches of model {model} are tried again on {kind}"
                )
            }
            Self::Rate {
                model,
                rate,
                assumed,
            } => {
                let (rate, assumed) = (rate.get(), assumed.get());
                write!(
                    f,
                    "model {model} gets {rate:.1} rows/s instead of {assumed:.1}"
                )
            }
            Self::ReplicaFailed { model, device } => {
                write!(f, "model {model} does not start on {device}")
            }
            Self::Retry { model, device } => {
                write!(f, "model {model} is tried again on {device}")
            }
            Self::DrainOverdue(node) => write!(f, "the time to drain node {node} is over"),
            Self::Interval => write!(f, "the time between two plans has passed"),
            Self::Late { model, ratio } => {
                let part = 100.0 * ratio;
                write!(
                    f,
                    "{part:.0} % of the predicted rows/s of model {model} are answered in time"
                )
            }
            Self::Drift { model, ratio } => {
                write!(f, "model {model} takes {ratio:.2} times as long as assumed")
            }
            Self::PolicyChanged(name) => write!(f, "the policy was changed to {name}"),
            Self::OptionsChanged => write!(f, "the policy's options were changed"),
            Self::DisciplineChanged(discipline) => {
                write!(f, "the discipline was changed to {discipline}")
            }
        }
    }
}

/// The largest number of reasons of one plan that are kept apart.
const MAX_REASONS: usize = 64;

/// The reasons of one plan, without duplicates, in the order of their occurrence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanReasons {
    reasons: Vec<PlanReason>,
    /// The number of further reasons.
    more: usize,
}

impl PlanReasons {
    /// Adds a reason, unless it is there already.
    pub(crate) fn insert(&mut self, reason: PlanReason) {
        if self.reasons.contains(&reason) {
            return;
        }
        if self.reasons.len() < MAX_REASONS || !reason.is_observation() && self.all_observations() {
            self.reasons.push(reason);
        } else {
            self.more += 1;
        }
    }

    /// Returns true if there is no reason.
    pub(crate) fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Returns true if all reasons are observations, so that the plan is judged by its [`Comparison`](crate::Comparison).
    pub fn all_observations(&self) -> bool {
        self.reasons.iter().all(PlanReason::is_observation)
    }

    /// Returns true if an admin asked for another way of planning, and so for what it costs each model.
    pub(crate) fn change_the_policy(&self) -> bool {
        let is_change = |reason: &PlanReason| {
            matches!(
                reason,
                PlanReason::PreviewOfPolicy
                    | PlanReason::PolicyChanged(_)
                    | PlanReason::OptionsChanged
                    | PlanReason::DisciplineChanged(_)
            )
        };
        self.reasons.iter().any(is_change)
    }

    /// Adds the reasons that are not there already.
    pub(crate) fn extend(&mut self, reasons: Self) {
        for reason in reasons.reasons {
            self.insert(reason);
        }
        self.more += reasons.more;
    }
}

impl From<PlanReason> for PlanReasons {
    fn from(reason: PlanReason) -> Self {
        Self {
            reasons: vec![reason],
            more: 0,
        }
    }
}

impl fmt::Display for PlanReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The number of reasons that are written out; further ones are counted.
        const WRITTEN_OUT: usize = 3;
        for (i, reason) in self.reasons.iter().take(WRITTEN_OUT).enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{reason}")?;
        }
        match self.reasons.len().saturating_sub(WRITTEN_OUT) + self.more {
            0 => Ok(()),
            more => write!(f, ", and {more} more changes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_that_an_admin_or_a_node_gives_has_its_sentence() {
        let node: NodeName = "n".parse().unwrap();
        let model: ModelId = "m:2".parse().unwrap();
        let kind: DeviceKind = "T4".parse().unwrap();
        let scheduled = |scheduling| PlanReason::NodeScheduled(node.clone(), scheduling);
        for (reason, sentence) in [
            (PlanReason::GatewayStarted, "the gateway started"),
            (PlanReason::Preview, "a preview"),
            (PlanReason::NodeJoined(node.clone()), "node n joined"),
            (PlanReason::NodeLost(node.clone()), "node n was lost"),
            (
                PlanReason::DevicesChanged(node.clone()),
                "the devices of node n changed",
            ),
            (scheduled(Scheduling::Open), "node n was uncordoned"),
            (scheduled(Scheduling::Cordoned), "node n was cordoned"),
            (scheduled(Scheduling::Draining), "node n was drained"),
            (
                PlanReason::ModelRegistered(model.clone()),
                "model m:2 was registered",
            ),
            (
                PlanReason::ModelChanged(model.clone()),
                "model m:2 was changed",
            ),
            (
                PlanReason::ModelRemoved(model.clone()),
                "model m:2 was removed",
            ),
            (PlanReason::ModelFailed(model.clone()), "model m:2 failed"),
            (
                PlanReason::ModelMeasured(model.clone(), kind.clone()),
                "model m:2 was measured on T4",
            ),
            (
                PlanReason::ModelEstimated(model.clone()),
                "the profiles of model m:2 were estimated",
            ),
            (
                PlanReason::MeasurementFailed(model.clone(), kind.clone()),
                "model m:2 could not be measured on T4",
            ),
            (PlanReason::ProfilesImported, "profiles were imported"),
            (
                PlanReason::PairsImported(kind.clone()),
                "measured pairs of T4 were imported",
            ),
            (
                PlanReason::BatchLimit {
                    model: model.clone(),
                    kind: kind.clone(),
                    rows: 4,
                    planned: 8,
                },
                "model m:2 has memory for batches of 4 on T4, not of 8",
            ),
            (
                PlanReason::LargerBatches {
                    model: model.clone(),
                    kind,
                },
                "larger batches of model m:2 are tried again on T4",
            ),
        ] {
            assert_eq!(reason.to_string(), sentence);
        }
    }

    #[test]
    fn every_reason_of_the_running_cluster_has_its_sentence() {
        let node: NodeName = "n".parse().unwrap();
        let model: ModelId = "m:2".parse().unwrap();
        for (reason, sentence) in [
            (
                PlanReason::SplitChanged(model.name.clone()),
                "the requests of model m move to another version",
            ),
            (PlanReason::NodeRemoved(node.clone()), "node n was removed"),
            (
                PlanReason::Rate {
                    model: model.clone(),
                    rate: RequestsPerSecond::new(80.04).unwrap(),
                    assumed: RequestsPerSecond::new(50.0).unwrap(),
                },
                "model m:2 gets 80.0 rows/s instead of 50.0",
            ),
            (
                PlanReason::ReplicaFailed {
                    model: model.clone(),
                    device: "n/sim0".parse().unwrap(),
                },
                "model m:2 does not start on n/sim0",
            ),
            (
                PlanReason::Retry {
                    model: model.clone(),
                    device: "n/sim0".parse().unwrap(),
                },
                "model m:2 is tried again on n/sim0",
            ),
            (
                PlanReason::DrainOverdue(node.clone()),
                "the time to drain node n is over",
            ),
            (
                PlanReason::Interval,
                "the time between two plans has passed",
            ),
            (
                PlanReason::Late {
                    model: "m:1".parse().unwrap(),
                    ratio: 0.5,
                },
                "50 % of the predicted rows/s of model m:1 are answered in time",
            ),
            (
                PlanReason::Drift {
                    model,
                    ratio: 1.504,
                },
                "model m:2 takes 1.50 times as long as assumed",
            ),
            (
                PlanReason::PolicyChanged("usher".to_owned()),
                "the policy was changed to usher",
            ),
            (
                PlanReason::OptionsChanged,
                "the policy's options were changed",
            ),
            (
                PlanReason::DisciplineChanged(Discipline::Deadline),
                "the discipline was changed to deadline",
            ),
        ] {
            assert_eq!(reason.to_string(), sentence);
        }
    }

    #[test]
    fn equal_reasons_count_once_and_those_after_the_third_are_counted() {
        let node = |name: &str| PlanReason::NodeJoined(name.parse().unwrap());
        let mut reasons = PlanReasons::from(node("a"));
        reasons.insert(node("a"));
        reasons.insert(node("b"));
        assert_eq!(reasons.to_string(), "node a joined, node b joined");
        for name in ["c", "d", "e"] {
            reasons.insert(node(name));
        }
        assert_eq!(
            reasons.to_string(),
            "node a joined, node b joined, node c joined, and 2 more changes"
        );
        let mut others = PlanReasons::from(PlanReason::GatewayStarted);
        others.extend(PlanReasons::from(node("a")));
        others.extend(PlanReasons::from(node("a")));
        assert_eq!(others.to_string(), "the gateway started, node a joined");
    }
}
