//! SAC-D: a soft actor-critic for discrete actions.
//!
//! An action has a part for each head (the device and the level of each model). Its probability is the product of those of its parts, and its
//! value the sum of the values of its parts, as each critic gives them:
//!
//! ```text
//! Q(s, a) = Σ_h Q_h(s, a_h)        π(a | s) = Π_h π_h(a_h | s)        q_h = min_v Q_v,h
//! target  = r + γ Σ_h π_h(s')ᵀ (q'_h(s') − τ log π_h(s'))
//! critics:  J_Q = ½ (target − Q_v(s, a))²                              for v = 1, 2
//! actor:    J_π = Σ_h π_h(s)ᵀ (τ log π_h(s) − q_h(s))
//! τ:        J_τ = log τ · (entropy of π(s) − wanted entropy)
//! ```
//!
//! Source: InSS, section 5.4, algorithm 2 and equations 5 to 9; Christodoulou, "Soft Actor-Critic for Discrete Action Settings", 2019, to which it refers.
//!
//! Deviations, where the paper or its code errs or is silent:
//! - Equation 6 has the smaller of both critics in the loss of each. Then the larger one never learns. Each critic has its own value here, the smaller one
//!   only in the target.
//! - Equation 7 has `log π` for the chosen action alone; for discrete actions it is the mean over actions, as in equation 8.
//! - The wanted entropy `−log(1 + ι)` is below 0, where the entropy of no choice among options is, so that τ would only fall; the code's `0.98 · ln 30` is that of
//!   almost even choice. Here it is a part of the entropy of an even choice, which falls during the training from [`FIRST_ENTROPY`] to
//!   [`LAST_ENTROPY`]. In the code τ starts at 0, for want of a logarithm; here at 1, as in the paper.
//! - The code keeps the output layers of the actor out of the optimiser, so that they are never trained.
//! - The value of an action with several parts is not stated.
//! - The code draws experiences by their error; the paper, as here, with equal probabilities.

use packhorse_placement::inss::{INPUTS, Network, OUTPUTS};
use serde::{Deserialize, Serialize};

use crate::{
    gradient::{Adam, add_gradient},
    heads::{Distribution, Heads},
    random::Random,
    replay::Transition,
};

/// The widths of the hidden layers. The paper has 512 and 256, which take eight times as many multiplications.
const HIDDEN: [usize; 2] = [128, 64];
/// The learning rate of all networks and of the temperature. The paper has 0.0001, for 300,000 updates.
const LEARNING_RATE: f32 = 0.001;
/// The discount factor `γ`. The paper has 0.99. Only the backlog of a second reaches from one step into the next, so that what is far away is noise.
const DISCOUNT: f32 = 0.5;
/// The part `κ` of the critics that moves into their targets after each update.
const TARGET_PART: f32 = 0.01;
/// The wanted entropy at the start, as a part of that of an even choice.
const FIRST_ENTROPY: f32 = 0.3;
/// The same at the end.
const LAST_ENTROPY: f32 = 0.03;

/// The networks of an agent with their optimisers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) actor: Network,
    critics: [Network; 2],
    targets: [Network; 2],
    actor_adam: Adam,
    critic_adams: [Adam; 2],
    log_temperature: f32,
    temperature_adam: Adam,
}

/// Returns a network with random weights, evenly spread within `±sqrt(6 / inputs)` (He et al., 2015), and biases of 0.
pub(crate) fn random_network(widths: &[usize], random: &mut Random) -> Network {
    let mut network = Network::zeros(widths);
    for layer in &mut network.layers {
        let limit = (6.0 / layer.inputs as f64).sqrt();
        for weight in &mut layer.weights {
            *weight = random.between(-limit, limit) as f32;
        }
    }
    network
}

impl Agent {
    pub(crate) fn new(random: &mut Random) -> Self {
        let widths = [INPUTS, HIDDEN[0], HIDDEN[1], OUTPUTS];
        let mut network = || {
            let mut network = random_network(&widths, random);
            // All options are almost equal at first.
            if let Some(last) = network.layers.last_mut() {
                for weight in &mut last.weights {
                    *weight *= 0.01;
                }
            }
            network
        };
        let mut actor = network();
        let mut critics = [network(), network()];
        Self {
            actor_adam: Adam::for_network(&mut actor, LEARNING_RATE),
            critic_adams: critics
                .each_mut()
                .map(|critic| Adam::for_network(critic, LEARNING_RATE)),
            targets: critics.clone(),
            actor,
            critics,
            log_temperature: 0.0,
            temperature_adam: Adam::new(1, LEARNING_RATE),
        }
    }

    /// Returns the temperature `τ`, the worth of entropy.
    pub(crate) fn temperature(&self) -> f32 {
        self.log_temperature.exp()
    }

    /// Learns from some steps. `progress` is the part of the training that is done.
    pub(crate) fn learn(&mut self, steps: &[&Transition], progress: f32) {
        let temperature = self.temperature();
        let part = 1.0 / steps.len() as f32;
        let widths = self.actor.widths();
        let mut actor_gradient = Network::zeros(&widths);
        let mut critic_gradients = [Network::zeros(&widths), Network::zeros(&widths)];
        let mut excess_entropy = 0.0;
        let wanted = FIRST_ENTROPY + (LAST_ENTROPY - FIRST_ENTROPY) * progress;
        for step in steps {
            let target = self.target(step, temperature);
            let values = self
                .critics
                .each_ref()
                .map(|critic| critic.activations(&step.state));
            for ((critic, gradient), activations) in
                self.critics.iter().zip(&mut critic_gradients).zip(&values)
            {
                let output = critic_derivative(outputs(activations), &step.chosen, target, part);
                add_gradient(critic, gradient, &step.state, activations, output);
            }
            let [first, second] = values.each_ref().map(|values| outputs(values));
            let activations = self.actor.activations(&step.state);
            let least = smaller(first, second);
            let (output, entropy) =
                actor_derivative(outputs(&activations), &least, step.heads, temperature, part);
            add_gradient(
                &self.actor,
                &mut actor_gradient,
                &step.state,
                &activations,
                output,
            );
            excess_entropy += part * (entropy - wanted * step.heads.most_entropy());
        }
        let critics = self.critics.iter_mut().zip(&mut critic_gradients);
        for ((critic, gradient), adam) in critics.zip(&mut self.critic_adams) {
            adam.descend_network(critic, gradient);
        }
        self.actor_adam
            .descend_network(&mut self.actor, &mut actor_gradient);
        self.temperature_adam
            .descend([&mut self.log_temperature], [&mut excess_entropy]);
        for (target, critic) in self.targets.iter_mut().zip(&mut self.critics) {
            let numbers = target.parameters_mut().into_iter().flatten();
            for (old, new) in numbers.zip(critic.parameters_mut().into_iter().flatten()) {
                *old += TARGET_PART * (*new - *old);
            }
        }
    }

    /// Returns the value that the critics should give to a step.
    fn target(&self, step: &Transition, temperature: f32) -> f32 {
        let [first, second] = self
            .targets
            .each_ref()
            .map(|target| target.outputs(&step.next));
        let preferences = self.actor.outputs(&step.next);
        step.reward
            + DISCOUNT
                * soft_value(
                    &preferences,
                    &smaller(&first, &second),
                    step.heads,
                    temperature,
                )
    }
}

/// Returns the outputs of a network's last layer.
fn outputs(activations: &[Vec<f32>]) -> &[f32] {
    activations.last().expect("a network has a layer")
}

fn smaller(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a.min(*b)).collect()
}

/// Returns the value of a state: `Σ_h π_hᵀ (q_h − τ log π_h)`.
fn soft_value(preferences: &[f32], values: &[f32], heads: Heads, temperature: f32) -> f32 {
    let of_heads = heads.iter().map(|head| {
        let distribution = Distribution::new(&preferences[head.clone()]);
        distribution.soft_value(&values[head], temperature)
    });
    of_heads.sum()
}

/// Returns the derivative of `part · ½ (Σ chosen values − target)²` by the values.
fn critic_derivative(values: &[f32], chosen: &[usize], target: f32, part: f32) -> Vec<f32> {
    let value: f32 = chosen.iter().map(|output| values[*output]).sum();
    let mut derivative = vec![0.0; values.len()];
    for output in chosen {
        derivative[*output] = part * (value - target);
    }
    derivative
}

/// Returns the derivative of `part · Σ_h π_hᵀ (τ log π_h − q_h)` by the preferences, and the entropy of the choice.
fn actor_derivative(
    preferences: &[f32],
    values: &[f32],
    heads: Heads,
    temperature: f32,
    part: f32,
) -> (Vec<f32>, f32) {
    let mut derivative = vec![0.0; preferences.len()];
    let mut entropy = 0.0;
    for head in heads.iter() {
        let distribution = Distribution::new(&preferences[head.clone()]);
        let values = &values[head.clone()];
        let mean = distribution.soft_value(values, temperature);
        entropy += distribution.entropy();
        let of_options = distribution
            .probabilities
            .iter()
            .zip(&distribution.logarithms);
        for ((slope, (probability, log)), value) in
            derivative[head].iter_mut().zip(of_options).zip(values)
        {
            *slope = part * probability * (temperature * log - value + mean);
        }
    }
    (derivative, entropy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f32, b: f32) -> bool {
        (a - b).abs() < 1e-4
    }

    #[test]
    fn the_target_is_the_reward_and_what_the_next_state_is_worth() {
        // A state with one model on one of two devices, and 16 levels of equal value 0 and equal probability.
        let heads = Heads::new(1, 2);
        let mut preferences = vec![0.0; OUTPUTS];
        preferences[0] = 3.0_f32.ln();
        let mut values = vec![0.0; OUTPUTS];
        (values[0], values[1]) = (2.0, -2.0);
        // Three to one: 0.75 · 2 − 0.25 · 2 = 1. The masked devices count for nothing.
        (values[2], values[3]) = (1e6, 1e6);
        assert!(close(soft_value(&preferences, &values, heads, 0.0), 1.0));
        // Entropies: −0.75 ln 0.75 − 0.25 ln 0.25 = 0.562335, and ln 16 = 2.772589.
        let with_entropy = soft_value(&preferences, &values, heads, 0.1);
        assert!(close(with_entropy, 1.0 + 0.1 * 3.334_924));
    }

    #[test]
    fn the_derivatives_are_those_of_finite_differences() {
        let heads = Heads::new(2, 3);
        let mut random = Random::new(3);
        let mut numbers = || -> Vec<f32> {
            let numbers = (0..OUTPUTS).map(|_| random.between(-1.0, 1.0) as f32);
            numbers.collect()
        };
        let (preferences, values) = (numbers(), numbers());
        let temperature = 0.3;
        let (derivative, entropy) =
            actor_derivative(&preferences, &values, heads, temperature, 1.0);
        let loss = |preferences: &[f32]| -soft_value(preferences, &values, heads, temperature);
        for index in 0..OUTPUTS {
            let moved = |by: f32| {
                let mut preferences = preferences.clone();
                preferences[index] += by;
                loss(&preferences)
            };
            let difference = (moved(0.01) - moved(-0.01)) / 0.02;
            assert!((difference - derivative[index]).abs() < 2e-3, "{index}");
        }
        // The device that is not there has no slope.
        assert!(derivative[3] == 0.0 && derivative[OUTPUTS - 1] == 0.0);
        let worth = soft_value(&preferences, &vec![0.0; OUTPUTS], heads, 1.0);
        assert!(close(entropy, worth));
        let chosen = [1, 7];
        let sum = values[1] + values[7];
        let slopes = critic_derivative(&values, &chosen, sum - 0.5, 0.1);
        assert!(close(slopes[1], 0.05) && close(slopes[7], 0.05));
        assert_eq!(slopes.iter().filter(|slope| **slope != 0.0).count(), 2);
    }

    #[test]
    fn an_agent_learns_the_better_options_of_a_small_decision_process() {
        // Two states of one model and two devices. In each the device of the state's number earns 1, and so does the level 3; nothing else earns anything.
        let mut random = Random::new(11);
        let mut agent = Agent::new(&mut random);
        let heads = Heads::new(1, 2);
        let state = |number: usize| {
            let mut inputs = vec![0.0; INPUTS];
            inputs[number] = 1.0;
            inputs
        };
        let mut replay = crate::replay::Replay::new(1_000);
        let mut now = 0;
        for number in 0..900_u16 {
            let preferences = agent.actor.outputs(&state(now));
            let chosen = heads.draw(&preferences, &mut random);
            let reward =
                f32::from(u8::from(chosen[0] == now)) + f32::from(u8::from(chosen[1] == 4 + 3));
            let next = random.below(2);
            replay.push(Transition {
                state: state(now),
                heads,
                chosen,
                reward,
                next: state(next),
            });
            now = next;
            if replay.len() >= 32 {
                let steps = replay.sample(32, &mut random);
                agent.learn(&steps, f32::from(number) / 900.0);
            }
        }
        // The best soft policy has probabilities in proportion to exp(value / τ): here the better option's logarithm is 1 / τ above the others'.
        let expected = 1.0 / agent.temperature();
        assert!(expected > 2.0, "the temperature falls");
        for number in 0..2 {
            let preferences = agent.actor.outputs(&state(number));
            let devices = preferences[number] - preferences[1 - number];
            let levels = preferences[4 + 3] - preferences[4 + 9];
            for difference in [devices, levels] {
                let ratio = difference / expected;
                assert!(
                    (0.75..1.25).contains(&ratio),
                    "{difference}, not {expected}"
                );
            }
        }
    }
}
