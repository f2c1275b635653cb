//! Families of variants.

use super::*;

/// Returns a family of `resnet50` and `alexnet` on a GPU each, whose clients ask for `rate` in all, and its report.
fn family(rate: f64, discipline: Discipline) -> Result<Report, SimulateError> {
    let mut text = "name = \"family\"\nprofiles = [\"thesis\"]\n[[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = 2\n".to_owned();
    for (name, accuracy) in [("alexnet", 56.5), ("resnet50", 76.1)] {
        let rate = rate / 2.0;
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nfamily = \"f\"\naccuracy = {accuracy}\nrate_rps = {rate}\nslo_ms = 100\npayload_bytes = 602112"
        )
        .unwrap();
    }
    let scenario = Scenario::parse(&text, &mut |_| Ok(THESIS.to_owned())).unwrap();
    let replicas = plan(&scenario, &[("alexnet", 0, 16), ("resnet50", 1, 16)]);
    let plan = PlanReport::from_replicas(&scenario, &replicas);
    simulate(&scenario, plan, &replicas, discipline, 1, &mut |_| {})
}

#[test]
fn the_most_accurate_variant_answers_until_it_is_full_and_then_another() {
    let light = family(200.0, Discipline::Deadline).unwrap();
    assert_eq!(model(&light, "alexnet").offered_rps, 0.0);
    assert_eq!(model(&light, "resnet50").accuracy_pct, Some(76.1));
    let right = light.totals.right_rps.unwrap();
    assert!((right - 0.761 * light.totals.goodput_rps).abs() < 1e-9);
    // More than a GPU computes of resnet50.
    let heavy = family(2_000.0, Discipline::Deadline).unwrap();
    let answered = |name| model(&heavy, name).goodput_rps;
    assert!(
        answered("resnet50") > 400.0 && answered("alexnet") > 400.0,
        "{} {}",
        answered("resnet50"),
        answered("alexnet")
    );
    assert!(heavy.totals.goodput_rps > 0.99 * heavy.totals.offered_rps);
    let expected = 0.761 * answered("resnet50") + 0.565 * answered("alexnet");
    assert!((heavy.totals.right_rps.unwrap() - expected).abs() < 1e-9);
}

#[test]
fn schedulers_of_the_simulator_know_no_families() {
    let error = family(200.0, Discipline::Flex).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the discipline flex knows no families of models"
    );
}
