//! `ao-milp` and `wsm-milp`: the placement with the most goodput, in Usher's terms, by mixed integer linear programming.
//!
//! With `x[m,b,g]` = 1 if model `m` runs with batch size `b` on device `g`, `y[m,b]` = 1 if `m` has batch size `b`, and `w[m]` its
//! goodput:
//!
//! ```text
//! maximise Σ w[m]                                                   subject to
//!   w[m] ≤ rate[m]                           w[m] ≤ Σ_{b,g} batch / latency[m,b,g] · x[m,b,g]
//!   Σ_b y[m,b] ≤ 1                           x[m,b,g] ≤ y[m,b]
//!   Σ_{m,b} Creq[m,b,g] · x[m,b,g] ≤ 100     Σ_{m,b} Mreq[m,b,g] · x[m,b,g] ≤ 100     for each g
//! ```
//!
//! `ao-milp` takes the highest achieved occupancy as Creq, `wsm-milp` the mean utilisation of the multiprocessors. Neither gives
//! compute shares: replicas of a device share its multiprocessors freely.
//!
//! With [`Objective::MaxMin`] the least served share `min w[m] / rate[m]` over the models that can run at all comes first, and
//! then the sum. With [`PolicyOptions::prefer_small_batch`] the placement is, of all with as much goodput, one with the least
//! sum of the models' batch sizes, and then of replicas. Each is one more program, with the optimum before it as a constraint.
//!
//! Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", section 5.4.3, the metrics of sections
//! 5.2.2 and 5.3.2.
//!
//! Where we deviate:
//! - The thesis prints `w[m] ≤ Σ_b goodput[m,b]`, which has no variable in it: a model would count goodput without a device.
//! - It bounds replicas over all models; meant is each model's, and with at most one per device (`x ≤ y`, `Σ y ≤ 1`) the number of
//!   devices is that bound.
//! - Every quantity has a device dimension, as the thesis suggests for devices of several kinds.
//! - A replica without which its model still carries its rate is left out of an optimum that has one.
//! - A millionth of a percent of the memory stays free: a solver meets limits within tolerances, and a plan must not exceed them. So
//!   replicas that fill a device to the byte are not put on it together.
//! - Models that expect no requests add nothing to the sum: they get what room is left, one replica each, smallest need first.
//!
//! `HiGHS` solves it with one thread and no gap (feature `highs`, on by default), else microlp: the same problem, the same plan. A node
//! of its search counts as a thousand steps; microlp looks at the budget's time limit only.

use good_lp::Expression;
use packhorse_cluster::{ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond};

use self::formulation::Formulation;
use crate::{
    Budget, ComputeMetric, Objective, PlaceError, Policy, PolicyOptions, fluid,
    requirements::{Requirement, Requirements},
};

mod formulation;
mod solver;

/// An optimum that a later program has to keep may be missed by this part: solvers work within tolerances.
const TOLERANCE: f64 = 1e-7;

/// The program with its idea of what counts as compute.
pub(crate) struct Milp {
    pub(crate) name: &'static str,
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
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let metric = options.compute_metric.unwrap_or(self.metric);
        let requirements = Requirements::new(problem, metric);
        let mut replicas = best_placement(problem, &requirements, options, budget)?;
        place_idle(problem, &requirements, &mut replicas);
        replicas.sort_by_key(|replica| (replica.model, replica.device));
        let shortfall = |(model, _)| {
            let served = replicas.iter().any(|replica| replica.model == model);
            let missing = requirements.missing(model).map(str::to_owned);
            let outbid = || "the devices give more without it".to_owned();
            (!served).then(|| missing.unwrap_or_else(outbid))
        };
        let shortfalls = problem.models().map(shortfall).collect();
        Ok(fluid::plan(self.name, problem, replicas, shortfalls))
    }
}

/// The programs, one after the other.
fn best_placement(
    problem: &Problem,
    requirements: &Requirements<'_>,
    options: &PolicyOptions,
    budget: &mut Budget<'_>,
) -> Result<Vec<PlannedReplica>, PlaceError> {
    let mut kept = Vec::new();
    let program = |kept: &[Kept]| {
        let mut program = Formulation::new(problem, requirements);
        for kept in kept {
            program.keep(*kept);
        }
        program
    };
    if program(&kept).is_empty() {
        return Ok(Vec::new());
    }
    if options.objective == Objective::MaxMin {
        let mut fairest = program(&kept);
        let least = fairest.least_share();
        let solved = fairest.maximise(problem, &least.into(), budget)?;
        kept.push(Kept::Share(solved.optimum * (1.0 - TOLERANCE)));
    }
    let most = program(&kept);
    let goodput = most.goodput();
    let solved = most.maximise(problem, &goodput, budget)?;
    if !options.prefer_small_batch {
        return Ok(solved.replicas);
    }
    kept.push(Kept::Goodput(solved.optimum * (1.0 - TOLERANCE)));
    let smallest = program(&kept);
    let sizes: Expression = smallest.sizes();
    Ok(smallest.maximise(problem, &-sizes, budget)?.replicas)
}

/// What an earlier program has reached, and the next one must not give up.
#[derive(Clone, Copy)]
enum Kept {
    /// Of each model's rate.
    Share(f64),
    /// In sum, in requests/s.
    Goodput(f64),
}

/// Gives each model that expects no requests one replica where there is room left, smallest need first.
fn place_idle(
    problem: &Problem,
    requirements: &Requirements<'_>,
    replicas: &mut Vec<PlannedReplica>,
) {
    let mut rooms = vec![(100.0, 100.0); problem.devices.len()];
    let class = |replica: &PlannedReplica| requirements.class_of[replica.device.0];
    for replica in replicas.iter() {
        let need = requirements.with_batch(replica.model, class(replica), replica.batch_size);
        let Requirement {
            compute, memory, ..
        } = need.expect("it was chosen");
        rooms[replica.device.0].0 -= compute;
        rooms[replica.device.0].1 -= memory;
    }
    let idle = problem
        .models()
        .filter(|(_, demanded)| demanded.rate == RequestsPerSecond::ZERO);
    for (model, _) in idle {
        let possible = problem.devices().flat_map(|(device, _)| {
            let (compute, memory) = rooms[device.0];
            let needs = requirements
                .of(model, requirements.class_of[device.0])
                .iter();
            needs
                .filter(move |need| need.compute <= compute && need.memory <= memory)
                .map(move |need| (device, *need))
        });
        let size = |need: &Requirement| need.compute + need.memory;
        let smallest = possible.min_by(|a, b| size(&a.1).total_cmp(&size(&b.1)));
        if let Some((device, need)) = smallest {
            rooms[device.0].0 -= need.compute;
            rooms[device.0].1 -= need.memory;
            replicas.push(planned(model, device, &need));
        }
    }
}

fn planned(
    model: ModelIndex,
    device: packhorse_cluster::DeviceIndex,
    need: &Requirement,
) -> PlannedReplica {
    PlannedReplica {
        model,
        device,
        batch_size: need.batch_size,
        compute_share: None,
        duty_cycle: None,
    }
}
