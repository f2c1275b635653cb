//! The program as variables and constraints.

use std::collections::BTreeMap;

use good_lp::{Constraint, Expression, ProblemVariables, Solution as _, Variable, variable};
use packhorse_cluster::{DeviceIndex, ModelIndex, PlannedReplica, Problem, RequestsPerSecond};

use super::{Kept, planned, solver};
use crate::{
    Budget, PlaceError,
    requirements::{Requirement, Requirements},
};

/// What a solver may exceed a limit by. Compute percentages are no harder than that, but memory is.
const SOLVER_TOLERANCE: f64 = 1e-6;

/// A replica that could be.
struct Possible {
    model: ModelIndex,
    device: DeviceIndex,
    need: Requirement,
    /// `x[m,b,g]`
    chosen: Variable,
}

/// A model that can run and expects requests.
struct Served {
    rate: f64,
    /// `w[m]`
    goodput: Variable,
    /// Batch sizes with `y[m,b]`.
    sizes: BTreeMap<u32, Variable>,
}

pub(super) struct Formulation {
    variables: ProblemVariables,
    constraints: Vec<Constraint>,
    served: Vec<Served>,
    possible: Vec<Possible>,
}

/// An optimum and a placement that has it.
pub(super) struct Solved {
    pub(super) optimum: f64,
    pub(super) replicas: Vec<PlannedReplica>,
}

impl Formulation {
    pub(super) fn new(problem: &Problem, requirements: &Requirements<'_>) -> Self {
        let mut formulation = Self {
            variables: ProblemVariables::new(),
            constraints: Vec::new(),
            served: Vec::new(),
            possible: Vec::new(),
        };
        for (model, demanded) in problem.models() {
            if demanded.rate > RequestsPerSecond::ZERO && requirements.missing(model).is_none() {
                formulation.add_model(problem, requirements, model);
            }
        }
        formulation.limit_devices(problem);
        formulation
    }

    pub(super) fn is_empty(&self) -> bool {
        self.possible.is_empty()
    }

    fn add_model(&mut self, problem: &Problem, requirements: &Requirements<'_>, model: ModelIndex) {
        let rate = problem.models[model.0].rate.get();
        let goodput = self.variables.add(variable().min(0.0).max(rate));
        let sizes: BTreeMap<u32, Variable> = requirements
            .batch_sizes(model)
            .into_iter()
            .map(|size| (size, self.variables.add(variable().binary())))
            .collect();
        self.constraints
            .push(sizes.values().copied().sum::<Expression>().leq(1.0));
        let mut carried = Expression::default();
        for (device, _) in problem.devices() {
            for need in requirements.of(model, requirements.class_of[device.0]) {
                let chosen = self.variables.add(variable().binary());
                let of_size = sizes[&need.batch_size];
                self.constraints.push((chosen - of_size).leq(0.0));
                carried.add_mul(need.throughput, chosen);
                self.possible.push(Possible {
                    model,
                    device,
                    need: *need,
                    chosen,
                });
            }
        }
        self.constraints.push((goodput - carried).leq(0.0));
        self.served.push(Served {
            rate,
            goodput,
            sizes,
        });
    }

    fn limit_devices(&mut self, problem: &Problem) {
        let nothing = || (Expression::default(), Expression::default());
        let mut taken: Vec<_> = problem.devices.iter().map(|_| nothing()).collect();
        for Possible {
            device,
            need,
            chosen,
            ..
        } in &self.possible
        {
            taken[device.0].0.add_mul(need.compute, *chosen);
            taken[device.0].1.add_mul(need.memory, *chosen);
        }
        for (compute, memory) in taken {
            self.constraints.push(compute.leq(100.0));
            self.constraints.push(memory.leq(100.0 - SOLVER_TOLERANCE));
        }
    }

    /// `Σ w[m]`
    pub(super) fn goodput(&self) -> Expression {
        self.served.iter().map(|served| served.goodput).sum()
    }

    /// A variable that is at most any model's share of its rate.
    pub(super) fn least_share(&mut self) -> Variable {
        let least = self.variables.add(variable().min(0.0).max(1.0));
        for served in &self.served {
            self.constraints
                .push((served.rate * least - served.goodput).leq(0.0));
        }
        least
    }

    /// `Σ b · y[m,b]`, and less than one more for all replicas together.
    pub(super) fn sizes(&self) -> Expression {
        let mut sizes = Expression::default();
        for (size, chosen) in self.served.iter().flat_map(|served| &served.sizes) {
            sizes.add_mul(f64::from(*size), *chosen);
        }
        let each = 1.0 / (1.0 + self.possible.len() as f64);
        for possible in &self.possible {
            sizes.add_mul(each, possible.chosen);
        }
        sizes
    }

    pub(super) fn keep(&mut self, kept: Kept) {
        match kept {
            Kept::Share(share) => {
                for served in &self.served {
                    let least = Expression::from(served.rate * share);
                    self.constraints.push((least - served.goodput).leq(0.0));
                }
            }
            Kept::Goodput(goodput) => {
                self.constraints.push(self.goodput().geq(goodput));
            }
        }
    }

    /// A placement with the largest value of the objective.
    pub(super) fn maximise(
        self,
        problem: &Problem,
        objective: &Expression,
        budget: &mut Budget<'_>,
    ) -> Result<Solved, PlaceError> {
        let program = self.variables.maximise(objective.clone());
        let solution = solver::solve(program, self.constraints, budget)?;
        let chosen = self
            .possible
            .iter()
            .filter(|possible| solution.value(possible.chosen) > 0.5);
        let needed = chosen.collect::<Vec<_>>();
        let needed = needed
            .chunk_by(|a, b| a.model == b.model)
            .flat_map(|of_model| {
                without_surplus(of_model, problem.models[of_model[0].model.0].rate)
            });
        Ok(Solved {
            optimum: solution.eval(objective),
            replicas: needed
                .map(|possible| planned(possible.model, possible.device, &possible.need))
                .collect(),
        })
    }
}

/// The replicas of a model but for those, the last ones first, without which it still carries its rate.
fn without_surplus<'a>(replicas: &[&'a Possible], rate: RequestsPerSecond) -> Vec<&'a Possible> {
    let mut carried: f64 = replicas.iter().map(|replica| replica.need.throughput).sum();
    let mut kept = replicas.to_vec();
    kept.reverse();
    kept.retain(|replica| {
        let others = carried - replica.need.throughput;
        let surplus = others >= rate.get();
        if surplus {
            carried = others;
        }
        !surplus
    });
    kept
}
