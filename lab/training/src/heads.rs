//! The decisions that a state allows, and their probabilities.
//!
//! A network decides for as many models and devices as it has outputs for. Of a smaller group the outputs of what is not there are masked: they belong to
//! no head, so that they have no probability, no value and no gradient.

use std::ops::Range;

use packhorse_placement::inss::{device_options, level_options};
use serde::{Deserialize, Serialize};

use crate::random::Random;

/// The heads of a group: for each model one for its device and one for its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heads {
    models: usize,
    devices: usize,
}

impl Heads {
    pub(crate) fn new(models: usize, devices: usize) -> Self {
        Self { models, devices }
    }

    /// Returns the outputs of each head.
    pub(crate) fn iter(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.models).flat_map(move |model| {
            let devices = device_options(model);
            let there = devices.start..devices.start + self.devices;
            [there, level_options(model)]
        })
    }

    /// Returns the entropy of equal probabilities.
    pub(crate) fn most_entropy(self) -> f32 {
        self.iter().map(|head| (head.len() as f32).ln()).sum()
    }

    /// Draws an output of each head.
    pub(crate) fn draw(self, outputs: &[f32], random: &mut Random) -> Vec<usize> {
        let drawn = self.iter().map(|head| {
            let distribution = Distribution::new(&outputs[head.clone()]);
            head.start + random.choose(&distribution.probabilities)
        });
        drawn.collect()
    }
}

/// The probabilities of the outputs of a head: the softmax of its outputs.
pub(crate) struct Distribution {
    pub(crate) probabilities: Vec<f32>,
    pub(crate) logarithms: Vec<f32>,
}

impl Distribution {
    pub(crate) fn new(outputs: &[f32]) -> Self {
        let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = outputs.iter().map(|output| (output - most).exp()).sum();
        let sum = most + sum.ln();
        let logarithms: Vec<f32> = outputs.iter().map(|output| output - sum).collect();
        Self {
            probabilities: logarithms.iter().map(|log| log.exp()).collect(),
            logarithms,
        }
    }

    /// Returns the mean of the values of the outputs, less their entropy's worth: `Σ π · (value − τ · log π)`.
    pub(crate) fn soft_value(&self, values: &[f32], temperature: f32) -> f32 {
        let terms = self.probabilities.iter().zip(&self.logarithms).zip(values);
        terms
            .map(|((probability, log), value)| probability * (value - temperature * log))
            .sum()
    }

    pub(crate) fn entropy(&self) -> f32 {
        let terms = self.probabilities.iter().zip(&self.logarithms);
        -terms
            .map(|(probability, log)| probability * log)
            .sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use packhorse_placement::inss::{OPTIONS, OUTPUTS};

    use super::*;

    #[test]
    fn a_distribution_is_a_softmax() {
        let distribution = Distribution::new(&[0.0, 2.0_f32.ln(), 0.0]);
        let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
        for (index, expected) in [0.25, 0.5, 0.25].into_iter().enumerate() {
            assert!(close(distribution.probabilities[index], expected));
        }
        // 2 · 0.25 · ln 4 + 0.5 · ln 2.
        assert!(close(distribution.entropy(), 1.5 * 2.0_f32.ln()));
        let value = distribution.soft_value(&[4.0, 2.0, 0.0], 0.1);
        assert!(close(value, 2.0 + 0.1 * 1.5 * 2.0_f32.ln()));
        // Large outputs do not overflow.
        assert!(close(Distribution::new(&[1e4, 0.0]).probabilities[0], 1.0));
    }

    #[test]
    fn what_is_not_there_is_never_drawn() {
        let heads = Heads::new(2, 3);
        // The masked outputs have by far the largest values.
        let mut outputs = vec![1e6; OUTPUTS];
        for head in heads.iter() {
            outputs[head].fill(0.0);
        }
        let mut random = Random::new(7);
        let mut devices = [false; 3];
        for _ in 0..200 {
            let drawn = heads.draw(&outputs, &mut random);
            assert_eq!(drawn.len(), 4);
            devices[drawn[0]] = true;
            assert!((OPTIONS..OPTIONS + 3).contains(&drawn[2]));
        }
        assert_eq!(devices, [true; 3]);
        let expected = 2.0 * (3.0_f32.ln() + 16.0_f32.ln());
        assert!((heads.most_entropy() - expected).abs() < 1e-5);
    }
}
