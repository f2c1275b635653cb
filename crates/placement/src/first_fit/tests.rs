//! The packing by sets of equal devices against one that considers every device.

use proptest::prelude::*;

use super::*;
use crate::tests::properties::{many_devices, problem};

/// Returns the possible replicas on every device, by index.
fn on_every_device(packing: &Packing<'_>, model: ModelIndex, _time: f64) -> Vec<PossibleReplica> {
    let devices = packing.problem.devices();
    devices
        .filter_map(|(device, _)| packing.possible_replica(model, device))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sets_of_equal_devices_give_the_same_plan_as_every_device_alone(
        problem in prop_oneof![problem(), many_devices()],
    ) {
        let plain = pack(&problem, on_every_device, &mut Budget::unlimited());
        prop_assert_eq!(pack(&problem, BY_EQUAL_DEVICES, &mut Budget::unlimited()), plain);
    }
}
