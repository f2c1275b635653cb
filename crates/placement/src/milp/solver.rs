//! The solver of the programs: `HiGHS`, or microlp if the feature `highs` is off.

use good_lp::{
    Constraint, ResolutionError, Solution, SolutionStatus, SolverModel, variable::UnsolvedProblem,
};

use crate::{Budget, PlaceError};

/// Solves a program to optimality, deterministically.
pub(crate) fn solve(
    program: UnsolvedProblem,
    constraints: Vec<Constraint>,
    budget: &mut Budget<'_>,
) -> Result<impl Solution, PlaceError> {
    budget.spend(1)?;
    let mut model = backend::model(program, budget);
    for constraint in constraints {
        model.add_constraint(constraint);
    }
    let solved = model.solve();
    // The caller may have stopped planning during the solve.
    budget.spend(1)?;
    match solved {
        Ok(solution) if matches!(solution.status(), SolutionStatus::TimeLimit) => {
            Err(PlaceError::OutOfSteps)
        }
        Ok(solution) => Ok(solution),
        Err(ResolutionError::Other("NoSolutionFound")) => Err(PlaceError::OutOfSteps),
        Err(e) => Err(PlaceError::Solver(e.to_string())),
    }
}

#[cfg(feature = "highs")]
mod backend {
    use good_lp::{solvers::highs::HighsProblem, variable::UnsolvedProblem};

    use crate::Budget;

    /// The steps of the budget that a node of the solver's search costs.
    const STEPS_PER_NODE: u64 = 1_000;

    /// Returns the model with one thread, no gap and the node limit of the budget.
    pub(super) fn model(program: UnsolvedProblem, budget: &Budget<'_>) -> HighsProblem {
        let nodes = i32::try_from(budget.steps() / STEPS_PER_NODE).unwrap_or(i32::MAX);
        let mut model = program
            .using(good_lp::highs)
            .set_threads(1)
            .set_option("mip_rel_gap", 0.0)
            .set_option("mip_max_nodes", nodes.max(1));
        if let Some(limit) = budget.time_limit() {
            model = model.set_time_limit(limit.as_secs_f64());
        }
        model
    }
}

#[cfg(not(feature = "highs"))]
mod backend {
    use good_lp::{WithTimeLimit, solvers::microlp::MicroLpProblem, variable::UnsolvedProblem};

    use crate::Budget;

    /// Returns the model with the time limit of the budget.
    pub(super) fn model(program: UnsolvedProblem, budget: &Budget<'_>) -> MicroLpProblem {
        let model = program.using(good_lp::microlp);
        match budget.time_limit() {
            Some(limit) => model.with_time_limit(limit.as_secs_f64()),
            None => model,
        }
    }
}
