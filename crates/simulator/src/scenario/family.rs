//! Families: variants of a model under one name, of which the most accurate one that can be in time answers.

use packhorse_cluster::{IdError, ModelIndex, ModelName};

use super::{
    Workload,
    file::ModelEntry,
    values::{ScenarioError, field_error, positive},
};

/// The place of a model among the variants of its family.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// The name of the family.
    pub family: ModelName,
    /// The part of its answers that are right, in percent.
    pub accuracy: f64,
}

/// Reads the family and the accuracy of a model; `None` if it belongs to no family.
pub(super) fn parse_variant(
    i: usize,
    entry: &ModelEntry,
) -> Result<Option<Variant>, ScenarioError> {
    let at = |key: &str| format!("models[{i}].{key}");
    match (&entry.family, entry.accuracy) {
        (None, None) => Ok(None),
        (None, Some(_)) => field_error(at("family"), "required beside accuracy"),
        (Some(_), None) => field_error(at("accuracy"), "required beside family"),
        (Some(family), Some(accuracy)) => Ok(Some(Variant {
            family: family
                .parse()
                .or_else(|e: IdError| field_error(at("family"), e.to_string()))?,
            accuracy: positive(at("accuracy"), accuracy, 100.0)?,
        })),
    }
}

/// Checks that the variants of a family take the same requests: those of one size, with one objective.
pub(super) fn check_families(
    entries: &[ModelEntry],
    workloads: &[Workload],
) -> Result<(), ScenarioError> {
    for (i, variants) in families(workloads).iter().enumerate() {
        let Some(&first) = variants.iter().min() else {
            continue;
        };
        let (entry, like) = (&entries[i], &entries[first.0]);
        let differs = |key: &str, expected: f64, found: f64| {
            let problem = format!(
                "expected {expected}, as of {}, another variant of the family, not {found}",
                like.name
            );
            field_error(format!("models[{i}].{key}"), problem)
        };
        if entry.slo_ms.total_cmp(&like.slo_ms).is_ne() {
            return differs("slo_ms", like.slo_ms, entry.slo_ms);
        }
        if entry.payload_bytes != like.payload_bytes {
            let bytes = |entry: &ModelEntry| entry.payload_bytes as f64;
            return differs("payload_bytes", bytes(like), bytes(entry));
        }
    }
    Ok(())
}

/// Returns the variants of each model's family, the most accurate first; empty for a model without a family.
pub(crate) fn families(workloads: &[Workload]) -> Vec<Vec<ModelIndex>> {
    let of_family = |name: &ModelName| {
        let models = workloads.iter().enumerate();
        let of_family = models.filter_map(|(model, workload)| {
            let variant = workload.variant.as_ref()?;
            (variant.family == *name).then_some((variant.accuracy, ModelIndex(model)))
        });
        let mut variants: Vec<_> = of_family.collect();
        variants.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        variants.into_iter().map(|(_, model)| model).collect()
    };
    let variants = workloads.iter().map(|workload| workload.variant.as_ref());
    variants
        .map(|variant| variant.map_or_else(Vec::new, |variant| of_family(&variant.family)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{error, parse};
    use super::*;

    fn text(first: &str, second: &str) -> String {
        let model = |name: &str, more: &str| {
            format!(
                "[[models]]\nname = \"{name}\"\nprofile = \"a\"\nrate_rps = 1\nslo_ms = 200\n{more}\n"
            )
        };
        let head = "name = \"f\"\nprofiles = [\"p.csv\"]\n[[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = 1\n";
        format!(
            "{head}{}{}{}",
            model("x", first),
            model("y", second),
            model("z", "")
        )
    }

    #[test]
    fn the_variants_of_a_family_stand_by_their_accuracy() {
        let text = text(
            "family = \"f\"\naccuracy = 70",
            "family = \"f\"\naccuracy = 80.5",
        );
        let scenario = parse(&text).unwrap();
        let both = vec![ModelIndex(1), ModelIndex(0)];
        assert_eq!(
            families(&scenario.workloads),
            [both.clone(), both, Vec::new()]
        );
    }

    #[test]
    fn a_family_without_accuracy_or_with_different_requests_is_refused() {
        let of = |first: &str, second: &str| error(&text(first, second));
        assert_eq!(
            of("family = \"f\"", ""),
            "models[0].accuracy: required beside family"
        );
        assert_eq!(
            of("", "accuracy = 70"),
            "models[1].family: required beside accuracy"
        );
        assert_eq!(
            of("family = \"f\"\naccuracy = 101", ""),
            "models[0].accuracy: expected above 0 and at most 100, not 101"
        );
        let (small, large) = (
            "family = \"f\"\naccuracy = 70\npayload_bytes = 1",
            "family = \"f\"\naccuracy = 80\npayload_bytes = 2",
        );
        assert_eq!(
            of(small, large),
            "models[1].payload_bytes: expected 1, as of x, another variant of the family, not 2"
        );
    }
}
