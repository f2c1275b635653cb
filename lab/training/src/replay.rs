//! The experiences from which an agent learns.

use serde::{Deserialize, Serialize};

use crate::{heads::Heads, random::Random};

/// A step: a decision with its reward, and what came after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Transition {
    pub(crate) state: Vec<f32>,
    /// The decisions that were possible, before and after.
    pub(crate) heads: Heads,
    /// The chosen output of each head.
    pub(crate) chosen: Vec<usize>,
    pub(crate) reward: f32,
    pub(crate) next: Vec<f32>,
}

/// The last steps, of which an agent draws some at random.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replay {
    limit: usize,
    oldest: usize,
    transitions: Vec<Transition>,
}

impl Replay {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            oldest: 0,
            transitions: Vec::new(),
        }
    }

    /// Adds a step, in place of the oldest one if the buffer is full.
    pub(crate) fn push(&mut self, transition: Transition) {
        if self.transitions.len() < self.limit {
            self.transitions.push(transition);
        } else {
            self.transitions[self.oldest] = transition;
            self.oldest = (self.oldest + 1) % self.limit;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.transitions.len()
    }

    /// Draws steps with equal probabilities.
    pub(crate) fn sample(&self, count: usize, random: &mut Random) -> Vec<&Transition> {
        let drawn = (0..count).map(|_| &self.transitions[random.below(self.transitions.len())]);
        drawn.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_steps_make_room() {
        let mut replay = Replay::new(3);
        for number in 0..5_u8 {
            replay.push(Transition {
                state: vec![],
                heads: Heads::new(1, 1),
                chosen: vec![],
                reward: f32::from(number),
                next: vec![],
            });
        }
        let rewards = replay.transitions.iter().map(|step| step.reward);
        assert_eq!(rewards.collect::<Vec<_>>(), vec![3.0, 4.0, 2.0]);
        let drawn = replay.sample(100, &mut Random::new(1));
        for reward in [2.0, 3.0, 4.0] {
            assert!(drawn.iter().any(|step| (step.reward - reward).abs() < 1e-6));
        }
    }
}
