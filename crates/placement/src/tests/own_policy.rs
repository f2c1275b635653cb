//! The policy of the book's chapter "Add a policy in fifty lines", which includes the parts between the anchors.

use proptest::prelude::*;

use super::{
    properties::{many_devices, problem},
    round_robin, *,
};
use crate::PolicyEntry;

#[rustfmt::skip]
const POLICIES: &[PolicyEntry] = &[
// ANCHOR: entry
    PolicyEntry {
        name: round_robin::NAME,
        summary: "Deals devices to the models in turn, until the rate of each is carried.",
        source: "the example of the book",
        assumes: "full batches, no waiting",
        policy: &round_robin::RoundRobin,
    },
// ANCHOR_END: entry
];

// ANCHOR: example
#[test]
fn devices_are_dealt_in_turn_until_a_rate_is_carried() {
    // A V100 carries 5,990 requests/s of alexnet in batches of 32, and 121.5 of bert in batches of 8.
    let problem = v100s(4, &[("alexnet", 6_500.0, 10), ("bert", 200.0, 100)]);
    let plan = POLICIES[0]
        .place(&problem, &mut Budget::unlimited())
        .unwrap();
    let replicas = plan.replicas.iter();
    let dealt: Vec<_> = replicas
        .map(|replica| (replica.device.0, replica.model.0, replica.batch_size))
        .collect();
    assert_eq!(dealt, [(0, 0, 32), (2, 0, 32), (1, 1, 8), (3, 1, 8)]);
    assert!(plan.models.iter().all(|model| model.shortfall.is_none()));
}
// ANCHOR_END: example

proptest! {
    #[test]
    fn its_plans_have_no_violations(problem in prop_oneof![problem(), many_devices()]) {
        let plan = POLICIES[0].place(&problem, &mut Budget::unlimited()).unwrap();
        prop_assert_eq!(plan.violations(&problem), []);
        prop_assert_eq!(&plan, &POLICIES[0].place(&problem, &mut Budget::unlimited()).unwrap());
        for (model, demanded) in problem.models() {
            let forecast = &plan.models[model.0];
            let served = plan.replicas.iter().any(|replica| replica.model == model);
            let short = !served || forecast.goodput.get() < demanded.rate.get() * (1.0 - 1e-6);
            prop_assert_eq!(forecast.shortfall.is_some(), short);
        }
    }
}
