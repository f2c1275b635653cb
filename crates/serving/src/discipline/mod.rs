//! The dispatch disciplines: one trait, one file per implementation, and the function that chooses one by its name.

mod aimd;
mod deadline;
mod decision;
mod deferred;
mod fixed_wait;
mod interface;
mod model_view;
mod pooled;
#[cfg(test)]
mod test_run;

pub(crate) use decision::Decision;
pub(crate) use interface::Discipline;
pub(crate) use model_view::ModelView;
pub(crate) use pooled::{
    PooledBatch, PooledChoice, choose as choose_pooled, estimate_next, estimate_work,
};

use packhorse_cluster::Discipline as Name;

use crate::EngineConfig;

/// Returns the discipline that the configuration names.
pub(crate) fn configured_discipline(config: &EngineConfig) -> Box<dyn Discipline> {
    match config.discipline {
        Name::Deadline => Box::new(deadline::Deadline {
            options: config.deadline,
        }),
        Name::FixedWait => Box::new(fixed_wait::FixedWait {
            max_wait: config.max_batch_wait,
        }),
        Name::Symphony => Box::new(deferred::Deferred {
            choice: deferred::IdleChoice::LowestNumbered,
        }),
        Name::Accscale => Box::new(deferred::Deferred {
            choice: deferred::IdleChoice::RoundRobin,
        }),
        Name::Aimd => Box::new(aimd::Aimd),
        Name::Flex | Name::FlexNp | Name::Clockwork => {
            unreachable!("only the simulator has {}", config.discipline)
        }
    }
}
