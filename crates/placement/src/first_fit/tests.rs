//! Piles of devices against every device by itself.

use proptest::prelude::*;

use super::*;
use crate::tests::properties::{many_devices, problem};

/// Every device that could be chosen, by index.
fn one_by_one(packing: &Packing<'_>, model: ModelIndex, _time: f64) -> Vec<Choice> {
    let devices = packing.problem.devices();
    devices
        .filter_map(|(device, _)| packing.choice(model, device))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn piles_of_devices_give_the_same_plan_as_every_device_by_itself(
        problem in prop_oneof![problem(), many_devices()],
    ) {
        let plain = pack(&problem, one_by_one, &mut Budget::unlimited());
        prop_assert_eq!(pack(&problem, PILES, &mut Budget::unlimited()), plain);
    }
}
