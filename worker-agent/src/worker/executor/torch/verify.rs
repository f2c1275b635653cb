//! The verification of a program's optimization: what answers random inputs otherwise than the program as it is in its file is dropped, and as little
//! else as possible.

use std::time::Duration;

use packhorse_cluster::Verification;
use packhorse_worker_agent::handoff::Optimize;

use super::{
    attempt::{AttemptError, Start},
    shim::{Optimization, Rewriting},
    verify_recordings::{collect, dropped_rewriting},
};
use crate::{
    clock::now,
    executor::{
        error::StartError,
        stages::Executor as _,
        started::Started,
        verification::{NotCompared, Reference},
    },
};

/// The time in which the operator is looked for whose rewriting is to blame. Each attempt loads the program again.
const SEARCH_LIMIT: Duration = Duration::from_secs(30);

/// The program as it is in its file.
const AS_IT_IS: Rewriting = Rewriting {
    optimization: Optimization::Plain,
    kept: Vec::new(),
};

/// Starts a TorchScript program with the strongest optimization that works and, if wanted, answers as the program does as it is.
pub(super) fn start_script(start: &Start<'_>) -> Result<Started, StartError> {
    if start.options.optimize == Optimize::Off {
        return start.unverified(Optimization::Plain);
    }
    start_optimized(start, Optimization::Optimized)
}

/// Starts a TorchScript program with this optimization, if it works, else with less.
pub(super) fn start_optimized(
    start: &Start<'_>,
    strongest: Optimization,
) -> Result<Started, StartError> {
    let reference = reference_if_wanted(start)?;
    let mut dropped = Vec::new();
    let mut started = None;
    for optimization in [strongest, Optimization::Frozen] {
        match start.attempt(&optimization.into(), reference.as_ref()) {
            Ok(found) => {
                started = Some(found);
                break;
            }
            Err(AttemptError::Failed(error)) => {
                tracing::info!(%error, ?optimization, "the program cannot be optimised so far");
            }
            Err(AttemptError::Differs(difference)) => {
                let reason = difference.to_string();
                tracing::warn!(reason, ?optimization, "the optimization is dropped");
                if let Some(reference) = &reference
                    && optimization == strongest
                    && let Some((found, operator)) =
                        without_one_operator(start, strongest, reference)
                {
                    dropped.push(dropped_rewriting(
                        &format!("oneDNN's {operator}"),
                        &difference,
                    ));
                    started = Some(found);
                    break;
                }
                dropped.push(dropped_rewriting(name(start, optimization), &difference));
            }
        }
    }
    let mut started = match started {
        Some(started) => started,
        // What it answers then is what it answers.
        None => start.unverified(Optimization::Plain)?,
    };
    if let Some(reference) = &reference {
        let verification = started.verification.get_or_insert_with(|| Verification {
            compared: reference.compared(),
            not_compared: reference.not_compared().map(ToString::to_string),
            dropped: Vec::new(),
        });
        dropped.append(&mut verification.dropped);
        verification.dropped = dropped;
        if let Some(reason) = &verification.not_compared {
            tracing::warn!(reason, "the optimised program is not compared");
        }
    }
    Ok(started)
}

/// Runs the program as it is on random inputs. It is unloaded before the optimised one is loaded.
fn reference(start: &Start<'_>) -> Result<Reference, StartError> {
    let began = now();
    let executor = match start.load(&AS_IT_IS) {
        Ok(executor) => executor,
        Err(error) if error.permanent => {
            return Ok(Reference::none(NotCompared::NotStarted(error.reason)));
        }
        Err(error) => return Err(error),
    };
    let reference = collect(&executor, start.options)?;
    executor.release_memory();
    let took_s = (now() - began).as_secs_f64();
    tracing::info!(
        batches = reference.compared(),
        took_s,
        "the program as it is has answered"
    );
    Ok(reference)
}

/// Returns the answers of the program as it is, if they are wanted.
pub(super) fn reference_if_wanted(start: &Start<'_>) -> Result<Option<Reference>, StartError> {
    match start.options.optimize {
        Optimize::Verify => reference(start).map(Some),
        Optimize::Trust | Optimize::Off => Ok(None),
    }
}

/// Starts the program with all rewritings but that of one operator to oneDNN's, and returns that operator, too. `None` if no single one is to
/// blame.
fn without_one_operator(
    start: &Start<'_>,
    optimization: Optimization,
    reference: &Reference,
) -> Option<(Started, String)> {
    let began = now();
    for operator in start.load(&optimization.into()).ok()?.rewritten() {
        if now() - began >= SEARCH_LIMIT {
            tracing::info!("no time to find the operator whose rewriting is wrong");
            break;
        }
        let rewriting = Rewriting {
            optimization,
            kept: vec![operator.clone()],
        };
        if let Ok(started) = start.attempt(&rewriting, Some(reference)) {
            return Some((started, operator));
        }
    }
    None
}

fn name(start: &Start<'_>, optimization: Optimization) -> &'static str {
    match (optimization, start.options.cuda_device) {
        (Optimization::Frozen, _) => "freezing",
        (_, None) => "the rewriting to oneDNN's operators",
        (_, Some(_)) => "the rewriting to cuDNN's fused convolutions",
    }
}
