//! The options of the network's outputs.
//!
//! For each model of a group there are two heads: one with an output for each device, and one with an output for each level of the share.

use std::ops::Range;

/// The models that the network decides on together: the paper evaluates six and eight.
pub const MODELS: usize = 8;
/// The devices that it decides on, those of the paper.
pub const DEVICES: usize = 4;
/// The levels of a compute share.
pub const LEVELS: usize = 16;
/// The outputs of a model.
pub const OPTIONS: usize = DEVICES + LEVELS;
/// The outputs of the network.
pub const OUTPUTS: usize = MODELS * OPTIONS;

/// Returns the outputs for the devices of a model, given by its index in the group.
pub const fn device_options(model: usize) -> Range<usize> {
    model * OPTIONS..model * OPTIONS + DEVICES
}

/// Returns the outputs for the levels of a model, given by its index in the group.
pub const fn level_options(model: usize) -> Range<usize> {
    model * OPTIONS + DEVICES..(model + 1) * OPTIONS
}

/// Returns the allowed option with the highest preference, the first among equals.
pub(super) fn preferred(
    preferences: &[f32],
    allowed: impl DoubleEndedIterator<Item = usize>,
) -> Option<usize> {
    // `max_by` returns the last of equals.
    allowed
        .rev()
        .max_by(|&a, &b| preferences[a].total_cmp(&preferences[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_allowed_preference_wins() {
        let preferences = [0.5, 3.0, 3.0, -1.0];
        assert_eq!(preferred(&preferences, 0..4), Some(1));
        assert_eq!(preferred(&preferences, [0, 2, 3].into_iter()), Some(2));
        assert_eq!(preferred(&preferences, [3].into_iter()), Some(3));
        assert_eq!(preferred(&preferences, 0..0), None);
    }

    #[test]
    fn the_heads_of_all_models_are_the_outputs() {
        let heads = (0..MODELS).flat_map(|model| [device_options(model), level_options(model)]);
        assert_eq!(
            heads.flatten().collect::<Vec<_>>(),
            (0..OUTPUTS).collect::<Vec<_>>()
        );
    }
}
