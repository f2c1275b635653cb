//! The control plane's decisions, sans-io.
//!
//! The [`Controller`] decides everything between the commands of admins, the reports of nodes and the counts of the data plane on the
//! one side, and the wanted states of the nodes and the targets of the data plane on the other: which models are measured where,
//! when a plan is made and for which rates, whether it is worth its cost, and in which order it is rolled out. It handles an
//! [`Event`] and asks its driver for an [`Effect`]. The gateway drives it with a store, policies on threads, agents over HTTP and the
//! serving engine; the simulator drives it with simulated ones.
//!
//! It is level-triggered: it compares the current state with the planned one and keeps no history that it could not lose. What must
//! not be lost are the [`record`]s, and every change of them is durable before it takes effect.
//!
//! [`rates`] measures the request rates of models, and says what to plan for and when a plan is out of date.
//!
//! [`fencing`] says when the gateway must raise its epoch before an agent obeys it.
//!
//! The crate is pure: it has no clock, file system or randomness and uses ordered maps only, so that equal input gives equal
//! output.

mod adoption;
mod agent_message;
mod agents;
mod announcements;
mod arrival_rates;
mod assumptions;
mod backbones;
mod command;
mod commands;
mod controller;
mod device_observer;
mod device_speeds;
mod devices_needed;
mod drains;
mod dry_run;
mod effect;
mod estimated_kinds;
mod estimates;
mod event;
mod exclusions;
pub mod fencing;
mod finding;
mod finding_log;
mod finding_words;
mod findings;
mod incidents;
mod inspections;
mod keys;
mod known_measurements;
mod learned_shapes;
mod learned_times;
mod limits;
mod measurements;
mod memory_limits;
mod missed_causes;
mod missed_requests;
mod model_state;
mod models;
mod nodes;
mod notice;
mod observed_findings;
mod pending;
mod plan_reason;
mod planning;
mod planning_input;
mod planning_problem;
mod planning_trouble;
mod predictions;
mod publications;
pub mod rates;
mod reads;
pub mod record;
mod remeasuring;
mod restarts;
mod restore;
mod reused_measurements;
mod rollout;
mod sampling;
mod service_levels;
mod settle;
mod shape_counts;
mod splits;
mod state;
mod status;
mod store_again;
mod traffic;
mod unstored;
mod worker_ends;
mod worth;

pub use agent_message::{LeaseClaim, NodeReport};
pub use assumptions::Assumptions;
pub use backbones::{Backbone, BackboneMember};
pub use command::{Command, CommandError, ModelSpecChange, SplitChange, WriteError};
pub use controller::{Config, Controller};
pub use devices_needed::DevicesNeeded;
pub use dry_run::{ChangedInput, DryRun, NoProfile};
pub use effect::{Effect, ServeChange, Target, VersionShares, Write};
pub use event::{
    Comparison, ComputedWork, Event, LinkState, RequestCounts, Sample, Solution, SolveError,
};
pub use finding::{
    CurePreview, Evidence, EvidenceSource, Finding, Problem, RepositoryProblem, Severity, Subject,
};
pub use incidents::{Incident, IncidentFinding, MissedInIncident};
pub use keys::{Receipt, RequestKey, SolveKey};
pub use known_measurements::MeasurementKey;
pub use learned_times::{BatchTime, LearnedTime};
pub use missed_requests::{MissCause, MissedRequests, RequestStage};
pub use model_state::MeasurementProgress;
pub use models::Model;
pub use nodes::Node;
pub use notice::{DeviceNotice, Drift, FindingNotice, Notice, PlanNotice, ReplicaNotice};
pub use plan_reason::{PlanReason, PlanReasons};
pub use planning_input::{DraftPlan, FamilyDemand, PlanningInput, VariantDemand};
pub use planning_trouble::PlanningError;
pub use predictions::PredictedGoodput;
pub use shape_counts::ShapeCounts;
pub use status::ModelStatus;
