//! Usher beyond the figures of the thesis.

use super::{thesis::*, *};
use packhorse_cluster::{ComputeMetric, PolicyOptions};

fn by_metric(problem: &Problem, metric: ComputeMetric) -> Plan {
    let options = PolicyOptions {
        compute_metric: Some(metric),
        ..PolicyOptions::default()
    };
    place_with("usher", problem, options)
}

#[test]
fn the_compute_metric_can_be_chosen() {
    let problem = setting(6, &VISION, 500.0, 200);
    assert_eq!(
        by_metric(&problem, ComputeMetric::Achieved),
        place("usher", &problem)
    );
    assert_eq!(
        by_metric(&problem, ComputeMetric::Mean).replicas,
        place("wao-usher", &problem).replicas
    );
    // By utilisation some models share a device.
    let by_utilization = by_metric(&problem, ComputeMetric::Sm);
    assert_goodput(&by_utilization, 2500.0);
    assert!(devices_used(&by_utilization) < 6);
}

#[test]
fn a_missing_metric_is_named() {
    let mut problem = v100s(1, &[("m", 1.0, 200)]);
    problem.profiles = profiles("m,V100,1,,10,,100,,50,60");
    assert_eq!(
        shortfall(&place("usher", &problem), 0),
        Some(&Shortfall::MissingColumn {
            column: "achieved_occupancy_pct"
        })
    );
    assert_eq!(shortfall(&place("wao-usher", &problem), 0), None);
    problem.profiles = profiles("m,V100,1,,10,,,40,50,60");
    assert_eq!(
        shortfall(&place("usher", &problem), 0),
        Some(&Shortfall::MissingColumn {
            column: "memory_mib"
        })
    );
}

#[test]
fn memory_heavy_and_compute_heavy_models_share_a_device() {
    // Figure 7 of the Usher paper: models with 50/20, 20/20, 40/60 and 40/60 percent fit on two devices in the right pairs.
    let mut problem = v100s(
        4,
        &[
            ("m1", 10.0, 200),
            ("m2", 10.0, 200),
            ("m3", 10.0, 200),
            ("m4", 10.0, 200),
        ],
    );
    problem.devices = vec![device("V100", 1_000); 4];
    problem.profiles = profiles(
        "m1,V100,32,,10,,200,50,,\nm2,V100,32,,10,,200,20,,\nm3,V100,32,,10,,600,40,,\nm4,V100,32,,10,,600,40,,\n",
    );
    let plan = place("usher", &problem);
    assert_eq!(devices_used(&plan), 2);
    assert_ne!(devices_of(&plan, 2), devices_of(&plan, 3));
}

#[test]
fn a_new_device_is_the_cheapest_that_can_host() {
    let mut problem = v100s(2, &[("bert", 1.0, 200)]);
    problem.devices[0].cost_per_hour = Some(3.0);
    problem.devices[1].cost_per_hour = Some(2.0);
    assert_eq!(devices_of(&place("usher", &problem), 0), [1]);
}
