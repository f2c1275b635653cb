//! The input of a policy beside the problem.

use packhorse_cluster::PolicyOptions;

use crate::igniter::coefficients::IgniterCoefficients;

/// The options of a policy, and the measurements that only one policy reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanningOptions {
    /// The options that an operator can set.
    pub policy: PolicyOptions,
    /// The coefficients of models and devices that `igniter` requires; without them it serves nothing.
    pub igniter_coefficients: Option<IgniterCoefficients>,
}

impl From<PolicyOptions> for PlanningOptions {
    fn from(policy: PolicyOptions) -> Self {
        Self {
            policy,
            igniter_coefficients: None,
        }
    }
}
