//! The loop of the training.

use indicatif::{ProgressBar, ProgressStyle};
use packhorse_placement::inss::Network;
use serde::{Deserialize, Serialize};

use crate::{
    agent::Agent,
    environment::{Episode, Pool, STEPS},
    evaluation::{Evaluation, Score},
    random::Random,
    replay::{Replay, Transition},
};

/// The size of the replay buffer.
const REPLAY: usize = 10_000;
/// The steps that each update learns from.
const BATCH: usize = 100;
/// The steps in the environment for each update. The paper has one; with two, as many updates see twice as many problems.
const STEPS_PER_UPDATE: usize = 2;
/// The updates between two evaluations.
const EVALUATE_EVERY: u32 = 600;

/// A point of the learning curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) update: u32,
    /// The mean reward of a step of the episodes since the last point.
    pub(crate) reward: f64,
    pub(crate) temperature: f32,
    pub(crate) score: Score,
}

/// A training with all of its state between two episodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Training {
    updates: u32,
    done: u32,
    random: Random,
    agent: Agent,
    replay: Replay,
    points: Vec<Point>,
    /// The sum of the rewards since the last point, and their number.
    rewards: (f64, u32),
    /// The best actor by the estimate at any point.
    best: Option<(f64, Network)>,
}

impl Training {
    pub(crate) fn new(seed: u64, updates: u32) -> Self {
        let mut random = Random::new(seed);
        Self {
            updates,
            done: 0,
            agent: Agent::new(&mut random),
            random,
            replay: Replay::new(REPLAY),
            points: Vec::new(),
            rewards: (0.0, 0),
            best: None,
        }
    }

    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Returns the actor with the best score so far.
    pub(crate) fn actor(&self) -> &Network {
        self.best
            .as_ref()
            .map_or(&self.agent.actor, |(_, actor)| actor)
    }

    /// Trains until all updates are done. `store` keeps the state after each evaluation.
    pub(crate) fn run(
        &mut self,
        pool: &Pool,
        evaluation: &Evaluation,
        store: &mut dyn FnMut(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let style =
            ProgressStyle::with_template("  {wide_bar} {pos}/{len} {elapsed}, {eta} left; {msg}")?;
        let bar = ProgressBar::new(u64::from(self.updates)).with_style(style);
        bar.set_position(u64::from(self.done));
        if self.points.is_empty() {
            self.evaluate(evaluation)?;
        }
        while self.done < self.updates {
            self.episode(pool)?;
            bar.set_position(u64::from(self.done));
            let last = self.points.last().map_or(0, |point| point.update);
            if self.done >= last + EVALUATE_EVERY || self.done >= self.updates {
                self.evaluate(evaluation)?;
                store(self)?;
            }
            if let Some(point) = self.points.last() {
                bar.set_message(format!(
                    "{:.1} % in time, {:.1} % simulated",
                    100.0 * point.score.in_time,
                    100.0 * point.score.simulated
                ));
            }
        }
        bar.finish();
        Ok(())
    }

    /// Runs an episode, and learns from earlier ones on the way.
    fn episode(&mut self, pool: &Pool) -> anyhow::Result<()> {
        let mut episode = Episode::new(pool.draw(&mut self.random)?)?;
        let mut state = episode.state();
        let heads = episode.heads();
        for step in 0..STEPS {
            let preferences = self.agent.actor.outputs(&state);
            let chosen = heads.draw(&preferences, &mut self.random);
            let reward = episode.step(&chosen, &mut self.random)?;
            self.rewards.0 += f64::from(reward);
            self.rewards.1 += 1;
            let next = episode.state();
            self.replay.push(Transition {
                state,
                heads,
                chosen,
                reward,
                next: next.clone(),
            });
            state = next;
            if self.replay.len() >= BATCH
                && step % STEPS_PER_UPDATE == 0
                && self.done < self.updates
            {
                let steps = self.replay.sample(BATCH, &mut self.random);
                let progress = self.done as f32 / self.updates as f32;
                self.agent.learn(&steps, progress);
                self.done += 1;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, evaluation: &Evaluation) -> anyhow::Result<()> {
        let score = evaluation.of_actor(&self.agent.actor)?;
        if self.best.as_ref().is_none_or(|best| score.in_time > best.0) {
            self.best = Some((score.in_time, self.agent.actor.clone()));
        }
        let (sum, count) = std::mem::take(&mut self.rewards);
        self.points.push(Point {
            update: self.done,
            reward: sum / f64::from(count.max(1)),
            temperature: self.agent.temperature(),
            score,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_training_goes_on_as_if_it_had_not_been_stopped() {
        let pool = Pool::new().expect("the committed profiles");
        let mut training = Training::new(3, 1_000);
        for _ in 0..8 {
            training.episode(&pool).expect("an episode");
        }
        let stored = serde_json::to_string(&training).expect("a state");
        let mut resumed: Training = serde_json::from_str(&stored).expect("a state");
        for _ in 0..3 {
            training.episode(&pool).expect("an episode");
            resumed.episode(&pool).expect("an episode");
        }
        assert!(training.done > 40);
        assert_eq!(training.agent.actor, resumed.agent.actor);
        assert_eq!(
            serde_json::to_string(&training).expect("a state"),
            serde_json::to_string(&resumed).expect("a state")
        );
    }
}
