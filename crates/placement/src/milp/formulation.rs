//! A program as variables and constraints.

use std::collections::BTreeMap;

use good_lp::{Constraint, Expression, ProblemVariables, Solution as _, Variable, variable};
use packhorse_cluster::{DeviceIndex, ModelIndex, PlannedReplica, Problem, RequestsPerSecond};

use super::solver;
use crate::{
    Budget, PlaceError,
    requirements::{Requirement, Requirements},
};

/// The amount by which a solver may exceed a limit, in percent of a device. It matters for memory, not for compute.
const SOLVER_TOLERANCE: f64 = 1e-6;

/// A replica that the program can choose.
struct PossibleReplica {
    model: ModelIndex,
    device: DeviceIndex,
    /// The batch size and the resources that the replica requires.
    required: Requirement,
    /// The variable `x[m,b,g]`.
    chosen: Variable,
}

/// The variables of a model that can run and expects requests.
struct ModelVariables {
    /// The model's rate, in requests per second.
    rate: f64,
    /// The variable `w[m]`.
    goodput: Variable,
    /// The variables `y[m,b]`, by batch size.
    sizes: BTreeMap<u32, Variable>,
}

/// A program without its objective.
pub(super) struct Formulation {
    variables: ProblemVariables,
    constraints: Vec<Constraint>,
    models: Vec<ModelVariables>,
    /// The replicas that the program can choose, ordered by model.
    possible: Vec<PossibleReplica>,
}

/// The optimum of an earlier program, which a later one must reach.
#[derive(Clone, Copy)]
pub(super) enum LowerBound {
    /// The served fraction of every model's rate.
    ServedFraction(f64),
    /// The sum of the models' goodput, in requests per second.
    Goodput(f64),
}

/// The solution of a program.
pub(super) struct MilpSolution {
    /// The value of the objective.
    pub(super) optimum: f64,
    /// The chosen replicas.
    pub(super) replicas: Vec<PlannedReplica>,
}

impl Formulation {
    pub(super) fn new(problem: &Problem, requirements: &Requirements<'_>) -> Self {
        let mut formulation = Self {
            variables: ProblemVariables::new(),
            constraints: Vec::new(),
            models: Vec::new(),
            possible: Vec::new(),
        };
        for (model, demanded) in problem.models() {
            if demanded.rate > RequestsPerSecond::ZERO && requirements.infeasible(model).is_none() {
                formulation.add_model(problem, requirements, model);
            }
        }
        formulation.limit_devices(problem);
        formulation
    }

    /// Returns true if there is no replica to choose.
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
            for required in requirements.on_class(model, requirements.class_of[device.0]) {
                let chosen = self.variables.add(variable().binary());
                let has_size = sizes[&required.batch_size];
                self.constraints.push((chosen - has_size).leq(0.0));
                carried.add_mul(required.throughput, chosen);
                self.possible.push(PossibleReplica {
                    model,
                    device,
                    required: *required,
                    chosen,
                });
            }
        }
        self.constraints.push((goodput - carried).leq(0.0));
        self.models.push(ModelVariables {
            rate,
            goodput,
            sizes,
        });
    }

    fn limit_devices(&mut self, problem: &Problem) {
        let zero = || (Expression::default(), Expression::default());
        let mut used: Vec<_> = problem.devices.iter().map(|_| zero()).collect();
        for PossibleReplica {
            device,
            required,
            chosen,
            ..
        } in &self.possible
        {
            used[device.0].0.add_mul(required.compute, *chosen);
            used[device.0].1.add_mul(required.memory, *chosen);
        }
        for (compute, memory) in used {
            self.constraints.push(compute.leq(100.0));
            self.constraints.push(memory.leq(100.0 - SOLVER_TOLERANCE));
        }
    }

    /// Returns the sum of the models' goodput, `Σ w[m]`.
    pub(super) fn goodput(&self) -> Expression {
        self.models.iter().map(|model| model.goodput).sum()
    }

    /// Adds a variable that is at most the served fraction of any model's rate, and returns it.
    pub(super) fn add_smallest_fraction(&mut self) -> Variable {
        let smallest = self.variables.add(variable().min(0.0).max(1.0));
        for model in &self.models {
            self.constraints
                .push((model.rate * smallest - model.goodput).leq(0.0));
        }
        smallest
    }

    /// Returns the sum of the batch sizes, `Σ b · y[m,b]`, plus a term below 1 that grows with the number of replicas.
    pub(super) fn size(&self) -> Expression {
        let mut total = Expression::default();
        for (size, chosen) in self.models.iter().flat_map(|model| &model.sizes) {
            total.add_mul(f64::from(*size), *chosen);
        }
        let each = 1.0 / (1.0 + self.possible.len() as f64);
        for possible in &self.possible {
            total.add_mul(each, possible.chosen);
        }
        total
    }

    /// Adds the constraints of a lower bound.
    pub(super) fn add_bound(&mut self, bound: LowerBound) {
        match bound {
            LowerBound::ServedFraction(fraction) => {
                for model in &self.models {
                    let least = Expression::from(model.rate * fraction);
                    self.constraints.push((least - model.goodput).leq(0.0));
                }
            }
            LowerBound::Goodput(goodput) => {
                self.constraints.push(self.goodput().geq(goodput));
            }
        }
    }

    /// Returns a placement with the largest value of the objective.
    pub(super) fn maximise(
        self,
        problem: &Problem,
        objective: &Expression,
        budget: &mut Budget<'_>,
    ) -> Result<MilpSolution, PlaceError> {
        let program = self.variables.maximise(objective.clone());
        let solution = solver::solve(program, self.constraints, budget)?;
        let chosen = self
            .possible
            .iter()
            .filter(|possible| solution.value(possible.chosen) > 0.5);
        let chosen = chosen.collect::<Vec<_>>();
        let needed = chosen
            .chunk_by(|a, b| a.model == b.model)
            .flat_map(|replicas| {
                without_surplus(replicas, problem.models[replicas[0].model.0].rate)
            });
        Ok(MilpSolution {
            optimum: solution.eval(objective),
            replicas: needed
                .map(|possible| possible.required.replica(possible.model, possible.device))
                .collect(),
        })
    }
}

/// Removes the replicas of a model without which it still carries its rate, beginning with the last one.
fn without_surplus<'a>(
    replicas: &[&'a PossibleReplica],
    rate: RequestsPerSecond,
) -> Vec<&'a PossibleReplica> {
    let throughputs = replicas.iter().map(|replica| replica.required.throughput);
    let mut carried: f64 = throughputs.sum();
    let mut kept = replicas.to_vec();
    kept.reverse();
    kept.retain(|replica| {
        let others = carried - replica.required.throughput;
        let surplus = others >= rate.get();
        if surplus {
            carried = others;
        }
        !surplus
    });
    kept
}
