//! The backward pass of a network, and Adam.

use packhorse_placement::inss::{Layer, Network};
use serde::{Deserialize, Serialize};

/// Returns the sum of products, in eight lanes so that the processor adds eight at a time.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// Adds the gradient of a loss to `gradient`, which has the shape of the network. `output` is the derivative of the loss by each output of the
/// network, and `activations` what [`Network::activations`] returned for `input`.
pub(crate) fn add_gradient(
    network: &Network,
    gradient: &mut Network,
    input: &[f32],
    activations: &[Vec<f32>],
    output: Vec<f32>,
) {
    let mut derivative = output;
    for number in (0..network.layers.len()).rev() {
        let before = if number == 0 {
            input
        } else {
            &activations[number - 1]
        };
        let layer = &network.layers[number];
        add_layer(&mut gradient.layers[number], before, &derivative);
        if number == 0 {
            return;
        }
        let weights = layer.weights.chunks_exact(layer.outputs);
        let of_input = before.iter().zip(weights).map(|(&value, weights)| {
            // A rectified output of 0 does not depend on what is below it.
            if value > 0.0 {
                dot(&derivative, weights)
            } else {
                0.0
            }
        });
        derivative = of_input.collect();
    }
}

fn add_layer(gradient: &mut Layer, input: &[f32], derivative: &[f32]) {
    for (sum, value) in gradient.biases.iter_mut().zip(derivative) {
        *sum += value;
    }
    let rows = gradient.weights.chunks_exact_mut(gradient.outputs);
    for (&value, sums) in input.iter().zip(rows) {
        if value != 0.0 {
            for (sum, derivative) in sums.iter_mut().zip(derivative) {
                *sum += value * derivative;
            }
        }
    }
}

/// The optimiser Adam for a list of numbers.
///
/// Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Adam {
    rate: f32,
    step: i32,
    means: Vec<f32>,
    squares: Vec<f32>,
}

impl Adam {
    const MEAN_DECAY: f32 = 0.9;
    const SQUARE_DECAY: f32 = 0.999;
    const EPSILON: f32 = 1e-8;

    pub(crate) fn new(numbers: usize, rate: f32) -> Self {
        Self {
            rate,
            step: 0,
            means: vec![0.0; numbers],
            squares: vec![0.0; numbers],
        }
    }

    pub(crate) fn for_network(network: &mut Network, rate: f32) -> Self {
        let parameters = network.parameters_mut();
        Self::new(parameters.iter().map(|part| part.len()).sum(), rate)
    }

    /// Moves the numbers against their gradient.
    pub(crate) fn descend<'a>(
        &mut self,
        numbers: impl IntoIterator<Item = &'a mut f32>,
        gradient: impl IntoIterator<Item = &'a mut f32>,
    ) {
        self.step += 1;
        let mean_part = 1.0 - Self::MEAN_DECAY.powi(self.step);
        let square_part = 1.0 - Self::SQUARE_DECAY.powi(self.step);
        let moments = self.means.iter_mut().zip(&mut self.squares);
        for ((number, gradient), (mean, square)) in numbers.into_iter().zip(gradient).zip(moments) {
            *mean += (1.0 - Self::MEAN_DECAY) * (*gradient - *mean);
            *square += (1.0 - Self::SQUARE_DECAY) * (*gradient * *gradient - *square);
            *number -=
                self.rate * (*mean / mean_part) / ((*square / square_part).sqrt() + Self::EPSILON);
        }
    }

    /// Moves a network against its gradient.
    pub(crate) fn descend_network(&mut self, network: &mut Network, gradient: &mut Network) {
        let gradient = gradient.parameters_mut().into_iter().flatten();
        self.descend(network.parameters_mut().into_iter().flatten(), gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent::random_network, random::Random};

    /// Returns half of the squared distance of the outputs from 1.
    fn loss(network: &Network, input: &[f32]) -> f32 {
        let outputs = network.outputs(input);
        outputs.iter().map(|y| 0.5 * (y - 1.0) * (y - 1.0)).sum()
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let mut random = Random::new(1);
        let network = random_network(&[5, 19, 11, 9], &mut random);
        let input = [0.5, -1.0, 0.0, 2.0, 0.3];
        let activations = network.activations(&input);
        let outputs = activations.last().expect("three layers");
        let output = outputs.iter().map(|y| y - 1.0).collect();
        let mut gradient = Network::zeros(&network.widths());
        add_gradient(&network, &mut gradient, &input, &activations, output);
        let gradient: Vec<f32> = gradient
            .parameters_mut()
            .into_iter()
            .flatten()
            .map(|number| *number)
            .collect();
        let step = 1e-3;
        for (index, expected) in gradient.iter().enumerate() {
            let moved = |by: f32| {
                let mut network = network.clone();
                let mut parameters = network.parameters_mut().into_iter().flatten();
                *parameters.nth(index).expect("a parameter") += by;
                drop(parameters);
                loss(&network, &input)
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            let allowed = 2e-3 + 0.02 * expected.abs();
            assert!(
                (difference - expected).abs() < allowed,
                "parameter {index}: {difference} and {expected}"
            );
        }
        assert!(gradient.iter().any(|value| value.abs() > 0.1));
    }

    #[test]
    fn adam_moves_by_its_rate_first_and_finds_the_minimum() {
        // The first step is the rate, whatever the size of the gradient.
        let mut number = [3.0];
        let mut adam = Adam::new(1, 0.1);
        adam.descend(&mut number, &mut [400.0]);
        assert!((number[0] - 2.9).abs() < 1e-5);
        // A new one, as the old one remembers the size of that gradient for a thousand steps.
        let mut adam = Adam::new(1, 0.1);
        for _ in 0..500 {
            let mut gradient = [2.0 * (number[0] - 1.0)];
            adam.descend(&mut number, &mut gradient);
        }
        assert!((number[0] - 1.0).abs() < 1e-2, "{}", number[0]);
    }
}
