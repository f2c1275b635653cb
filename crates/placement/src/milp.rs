//! `ao-milp` and `wsm-milp`: the placement with the most goodput by Usher's resource model, found by mixed integer linear programming.
//!
//! `x[m,b,g]` is 1 if model `m` runs with batch size `b` on device `g`, `y[m,b]` is 1 if `m` has batch size `b`, and `w[m]` is the
//! goodput of `m`:
//!
//! ```text
//! maximise Σ w[m]                                                   subject to
//!   w[m] ≤ rate[m]                           w[m] ≤ Σ_{b,g} batch / latency[m,b,g] · x[m,b,g]
//!   Σ_b y[m,b] ≤ 1                           x[m,b,g] ≤ y[m,b]
//!   Σ_{m,b} Creq[m,b,g] · x[m,b,g] ≤ 100     Σ_{m,b} Mreq[m,b,g] · x[m,b,g] ≤ 100     for each g
//! ```
//!
//! Creq is the highest achieved occupancy for `ao-milp` and the mean utilisation of the multiprocessors for `wsm-milp`. Neither sets
//! compute shares: the replicas of a device share its multiprocessors without limits.
//!
//! [`Objective::MaxMin`] first maximises the smallest served fraction `min w[m] / rate[m]` over the models that can run, then the sum.
//! [`PolicyOptions::prefer_small_batch`] selects, among the placements with the most goodput, one with the smallest sum of the models'
//! batch sizes, then with the fewest replicas. Each of these steps is one more program with the previous optimum as a constraint.
//!
//! Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", section 5.4.3, the metrics of sections
//! 5.2.2 and 5.3.2.
//!
//! Deviations:
//! - The thesis prints `w[m] ≤ Σ_b goodput[m,b]`, which contains no variable: a model would count goodput without a device.
//! - The thesis bounds the sum of replicas over all models, but means the replicas of each model. As a model has at most one replica
//!   per device (`x ≤ y`, `Σ y ≤ 1`), the number of devices is that bound.
//! - Every quantity has a device dimension, as the thesis suggests for devices of several kinds.
//! - Replicas that a model does not need to carry its rate are removed from the optimum.
//! - A millionth of a percent of the memory stays free, because a solver meets limits within tolerances and a plan must not exceed
//!   them. Replicas that fill a device to the byte are therefore not placed together.
//! - Models without expected requests do not count in the objective. Each gets one replica in the remaining room, the one with the
//!   smallest requirement.
//!
//! `HiGHS` solves the programs with one thread and no gap if the feature `highs` is on, which is the default; otherwise microlp does.
//! Either way the same problem gives the same plan. A node of the search of `HiGHS` costs a thousand steps of the budget; microlp reads
//! only the budget's time limit.

use good_lp::Expression;
use packhorse_cluster::{
    ComputeMetric, Objective, Plan, PlannedReplica, PolicyOptions, Problem, RequestsPerSecond,
    Shortfall,
};

use self::formulation::{Formulation, LowerBound};
use crate::{
    Budget, PlaceError, PlanningOptions, Policy, fluid,
    requirements::{Requirement, Requirements},
};

mod formulation;
pub(crate) mod solver;

/// The fraction by which a later program may fall below an earlier optimum, because solvers work within tolerances.
const OPTIMUM_TOLERANCE: f64 = 1e-7;

/// A MILP policy.
pub(crate) struct Milp {
    /// The name of the policy.
    pub(crate) name: &'static str,
    /// The metric that counts as Creq unless the options choose another.
    metric: ComputeMetric,
}

pub(crate) const AO_MILP: Milp = Milp {
    name: "ao-milp",
    metric: ComputeMetric::Achieved,
};

pub(crate) const WSM_MILP: Milp = Milp {
    name: "wsm-milp",
    metric: ComputeMetric::Sm,
};

impl Policy for Milp {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let options = options.policy;
        let metric = options.compute_metric.unwrap_or(self.metric);
        let requirements = Requirements::new(problem, metric);
        let mut replicas = best_placement(problem, &requirements, options, budget)?;
        place_idle(problem, &requirements, &mut replicas);
        replicas.sort_by_key(|replica| (replica.model, replica.device));
        let shortfall = |(model, _)| {
            let served = replicas.iter().any(|replica| replica.model == model);
            let infeasible = requirements.infeasible(model).cloned();
            (!served).then(|| infeasible.unwrap_or(Shortfall::OthersGainMore))
        };
        let shortfalls = problem.models().map(shortfall).collect();
        Ok(fluid::plan_with_forecasts(
            self.name, problem, replicas, shortfalls,
        ))
    }
}

/// Solves the programs one after the other and returns the replicas of the last one.
fn best_placement(
    problem: &Problem,
    requirements: &Requirements<'_>,
    options: PolicyOptions,
    budget: &mut Budget<'_>,
) -> Result<Vec<PlannedReplica>, PlaceError> {
    let mut bounds = Vec::new();
    let program = |bounds: &[LowerBound]| {
        let mut program = Formulation::new(problem, requirements);
        for bound in bounds {
            program.add_bound(*bound);
        }
        program
    };
    if program(&bounds).is_empty() {
        return Ok(Vec::new());
    }
    if options.objective == Objective::MaxMin {
        let mut fairest = program(&bounds);
        let fraction = fairest.add_smallest_fraction();
        let solution = fairest.maximise(problem, &fraction.into(), budget)?;
        bounds.push(LowerBound::ServedFraction(
            solution.optimum * (1.0 - OPTIMUM_TOLERANCE),
        ));
    }
    let largest = program(&bounds);
    let goodput = largest.goodput();
    let solution = largest.maximise(problem, &goodput, budget)?;
    if !options.prefer_small_batch {
        return Ok(solution.replicas);
    }
    bounds.push(LowerBound::Goodput(
        solution.optimum * (1.0 - OPTIMUM_TOLERANCE),
    ));
    let smallest = program(&bounds);
    let size: Expression = smallest.size();
    Ok(smallest.maximise(problem, &-size, budget)?.replicas)
}

/// Gives each model without expected requests one replica in the remaining room, the one with the smallest requirement.
fn place_idle(
    problem: &Problem,
    requirements: &Requirements<'_>,
    replicas: &mut Vec<PlannedReplica>,
) {
    let mut free = vec![(100.0, 100.0); problem.devices.len()];
    let class = |replica: &PlannedReplica| requirements.class_of[replica.device.0];
    for replica in replicas.iter() {
        let requirement =
            requirements.with_batch(replica.model, class(replica), replica.batch_size);
        let Requirement {
            compute, memory, ..
        } = requirement.expect("it was chosen");
        free[replica.device.0].0 -= compute;
        free[replica.device.0].1 -= memory;
    }
    let idle = problem
        .models()
        .filter(|(_, demanded)| demanded.rate == RequestsPerSecond::ZERO);
    for (model, _) in idle {
        let possible = problem.devices().flat_map(|(device, _)| {
            let (compute, memory) = free[device.0];
            let on_class = requirements.on_class(model, requirements.class_of[device.0]);
            let fits = move |required: &&Requirement| {
                required.compute <= compute && required.memory <= memory
            };
            let fitting = on_class.iter().filter(fits);
            fitting.map(move |required| (device, *required))
        });
        let size = |required: &Requirement| required.compute + required.memory;
        let smallest = possible.min_by(|a, b| size(&a.1).total_cmp(&size(&b.1)));
        if let Some((device, required)) = smallest {
            free[device.0].0 -= required.compute;
            free[device.0].1 -= required.memory;
            replicas.push(required.replica(model, device));
        }
    }
}
