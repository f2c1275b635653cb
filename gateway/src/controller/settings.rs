//! The settings of the control plane, and the conversion of an admin's.

use std::time::Duration;

use packhorse_cluster::{Conditions, Discipline, ModelSpec, ModelSpecError};
use packhorse_control::{Assumptions, Config};
use packhorse_placement::{DEFAULT_POLICY, PolicyEntry};

use crate::clock::Clock;

/// The time between two samples of the data plane's counts.
const SAMPLE_PERIOD: Duration = Duration::from_secs(5);

/// The settings of the control plane.
#[derive(Clone, Copy)]
pub struct ControllerConfig {
    /// The duration of a node's lease.
    pub lease: Duration,
    /// The time after which a measurement begins no further batch size.
    pub profile_time_limit: Duration,
    /// True if models with the same backbone share workers.
    pub shared_backbones: bool,
    /// The time limit of a policy.
    pub solve_budget: Duration,
    /// The time that a new node takes to start.
    pub node_start: Duration,
    /// The longest time for which the discipline `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
    /// The placement policy; none for the stored one.
    pub policy: Option<&'static PolicyEntry>,
    /// The dispatch discipline; none for the stored one.
    pub discipline: Option<Discipline>,
}

impl ControllerConfig {
    /// Returns the settings of the state machine.
    pub(super) fn state_machine(&self, clock: &Clock) -> Config {
        Config {
            lease: self.lease,
            profile_time_limit: self.profile_time_limit,
            shared_backbones: self.shared_backbones,
            sample_period: SAMPLE_PERIOD,
            replan_interval: None,
            default_policy: DEFAULT_POLICY.to_owned(),
            assumptions: Assumptions {
                conditions: Conditions {
                    max_batch_wait: self.max_batch_wait,
                    ..Conditions::default()
                },
                ..Assumptions::default()
            },
            unix_start_ms: i64::try_from(clock.unix_ms(packhorse_cluster::Time::ZERO))
                .unwrap_or(i64::MAX),
        }
    }
}

/// Converts a latency objective from milliseconds.
///
/// # Errors
/// If the value is no duration. [`ModelSpec::validate`] checks the limits.
pub(crate) fn slo_from_ms(slo_ms: f64) -> Result<Duration, ModelSpecError> {
    Duration::try_from_secs_f64(slo_ms / 1e3).map_err(|_| ModelSpecError {
        field: "slo_ms".to_owned(),
        problem: format!(
            "expected above 0 and at most {} ms",
            ModelSpec::MAX_SLO.as_millis()
        ),
    })
}
