//! A small fully connected network: its numbers, its file format, and the forward pass.

use serde::{Deserialize, Serialize};

/// The first bytes of a file of weights.
const MAGIC: &[u8; 4] = b"PHN1";
/// The most layers and the most numbers of a layer that a file may have.
const MOST_LAYERS: usize = 8;
const MOST_WIDTH: usize = 4_096;

/// A fully connected layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The number of inputs.
    pub inputs: usize,
    /// The number of outputs.
    pub outputs: usize,
    /// The weights: for each input those of all outputs.
    pub weights: Vec<f32>,
    /// The bias of each output.
    pub biases: Vec<f32>,
}

impl Layer {
    /// Returns the outputs for an input.
    pub fn apply(&self, input: &[f32]) -> Vec<f32> {
        assert_eq!(input.len(), self.inputs);
        let mut output = self.biases.clone();
        for (&value, weights) in input.iter().zip(self.weights.chunks_exact(self.outputs)) {
            // Half of the outputs of a rectified layer are 0.
            if value != 0.0 {
                for (sum, weight) in output.iter_mut().zip(weights) {
                    *sum += value * weight;
                }
            }
        }
        output
    }
}

/// A network of fully connected layers. The outputs of all but the last are rectified: what is below 0 becomes 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// The layers, at least one, each with as many inputs as the one before it has outputs.
    pub layers: Vec<Layer>,
}

/// The error for bytes that are no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The bytes are not a file of weights.
    #[error("expected a file of weights that begins with PHN1")]
    Magic,
    /// The number of layers or their widths are out of range.
    #[error("expected 1 to {MOST_LAYERS} layers, each of 1 to {MOST_WIDTH} outputs")]
    Shape,
    /// There are fewer or more bytes than the layers have.
    #[error("expected {expected} bytes, but there are {actual}")]
    Length {
        /// The bytes that the layers have.
        expected: usize,
        /// The bytes that are there.
        actual: usize,
    },
    /// A weight is infinite or not a number.
    #[error("expected finite weights")]
    NotFinite,
}

impl Network {
    /// Creates a network of zeros with layers between these widths, the first being that of the input.
    pub fn zeros(widths: &[usize]) -> Self {
        assert!(widths.len() > 1, "a network has at least one layer");
        let layer = |pair: &[usize]| Layer {
            inputs: pair[0],
            outputs: pair[1],
            weights: vec![0.0; pair[0] * pair[1]],
            biases: vec![0.0; pair[1]],
        };
        Self {
            layers: widths.windows(2).map(layer).collect(),
        }
    }

    /// Returns the outputs of every layer for an input, those of the hidden layers rectified.
    pub fn activations(&self, input: &[f32]) -> Vec<Vec<f32>> {
        let mut activations: Vec<Vec<f32>> = Vec::with_capacity(self.layers.len());
        for (number, layer) in self.layers.iter().enumerate() {
            let mut output = layer.apply(activations.last().map_or(input, Vec::as_slice));
            if number + 1 < self.layers.len() {
                for value in &mut output {
                    *value = value.max(0.0);
                }
            }
            activations.push(output);
        }
        activations
    }

    /// Returns the outputs for an input.
    pub fn outputs(&self, input: &[f32]) -> Vec<f32> {
        let last = self.activations(input).pop();
        last.expect("a network has at least one layer")
    }

    /// Returns the widths of the input and of every layer's outputs.
    pub fn widths(&self) -> Vec<usize> {
        let first = self.layers.first().map(|layer| layer.inputs);
        let outputs = self.layers.iter().map(|layer| layer.outputs);
        first.into_iter().chain(outputs).collect()
    }

    /// Writes the network: `PHN1`, the number of widths, the widths, then for each layer its weights and its biases; all numbers have four
    /// bytes, the lowest first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let widths = self.widths();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((widths.len() as u32).to_le_bytes());
        bytes.extend(
            widths
                .iter()
                .flat_map(|&width| (width as u32).to_le_bytes()),
        );
        for layer in &self.layers {
            let numbers = layer.weights.iter().chain(&layer.biases);
            bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
        }
        bytes
    }

    /// Reads what [`Network::to_bytes`] writes.
    ///
    /// # Errors
    /// If the bytes are no network.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NetworkError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(NetworkError::Magic)?;
        let words = rest.as_chunks::<4>().0;
        let count = |index: usize| {
            words
                .get(index)
                .map(|word| u32::from_le_bytes(*word) as usize)
        };
        let widths = count(0).ok_or(NetworkError::Shape)?;
        if !(2..=MOST_LAYERS + 1).contains(&widths) {
            return Err(NetworkError::Shape);
        }
        let widths: Vec<usize> = (1..=widths).map_while(count).collect();
        if widths.len() != count(0).unwrap_or_default()
            || widths.iter().any(|width| !(1..=MOST_WIDTH).contains(width))
        {
            return Err(NetworkError::Shape);
        }
        let mut network = Self::zeros(&widths);
        let parameters = network.parameters_mut();
        let numbers: usize = parameters.iter().map(|numbers| numbers.len()).sum();
        let expected = MAGIC.len() + 4 * (1 + widths.len() + numbers);
        if bytes.len() != expected {
            return Err(NetworkError::Length {
                expected,
                actual: bytes.len(),
            });
        }
        let values = words[1 + widths.len()..].iter();
        for (number, word) in parameters.into_iter().flatten().zip(values) {
            *number = f32::from_le_bytes(*word);
            if !number.is_finite() {
                return Err(NetworkError::NotFinite);
            }
        }
        Ok(network)
    }

    /// Returns the weights and biases of each layer in turn.
    pub fn parameters_mut(&mut self) -> Vec<&mut [f32]> {
        let mut parameters = Vec::new();
        for layer in &mut self.layers {
            parameters.push(layer.weights.as_mut_slice());
            parameters.push(layer.biases.as_mut_slice());
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two inputs, two hidden outputs, one output.
    fn small() -> Network {
        let mut network = Network::zeros(&[2, 2, 1]);
        network.layers[0].weights = vec![1.0, -1.0, 2.0, 0.5];
        network.layers[0].biases = vec![0.5, 0.0];
        network.layers[1].weights = vec![3.0, 10.0];
        network.layers[1].biases = vec![-1.0];
        network
    }

    #[test]
    fn hidden_outputs_below_zero_count_as_zero() {
        // Hidden: 1 · 2 + 2 · 1 + 0.5 = 4.5, and −2 + 0.5 = −1.5, which becomes 0. Output: 3 · 4.5 − 1.
        assert_eq!(small().outputs(&[2.0, 1.0]), [12.5]);
        assert_eq!(small().activations(&[2.0, 1.0])[0], [4.5, 0.0]);
        // The output itself may be below 0: hidden −2 + 0.5 and 2.
        assert_eq!(small().outputs(&[-2.0, -4.0]), [-1.0]);
    }

    #[test]
    fn networks_are_written_and_read_back() {
        let bytes = small().to_bytes();
        assert_eq!(bytes.len(), 4 + 4 * (4 + 9));
        assert_eq!(Network::from_bytes(&bytes), Ok(small()));
    }

    #[test]
    fn broken_files_are_refused() {
        let bytes = small().to_bytes();
        assert_eq!(Network::from_bytes(b"PHN0"), Err(NetworkError::Magic));
        assert_eq!(Network::from_bytes(&bytes[..8]), Err(NetworkError::Shape));
        let short = Network::from_bytes(&bytes[..bytes.len() - 1]);
        assert_eq!(
            short,
            Err(NetworkError::Length {
                expected: 56,
                actual: 55
            })
        );
        let mut wide = bytes.clone();
        wide[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Network::from_bytes(&wide), Err(NetworkError::Shape));
        let mut infinite = bytes;
        infinite[20..24].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert_eq!(Network::from_bytes(&infinite), Err(NetworkError::NotFinite));
    }
}
