//! Families: models of a scenario that are variants of each other.

use std::collections::BTreeMap;

use packhorse_cluster::{DemandedModel, ModelIndex, Percent, VariantOf, by_accuracy};

use packhorse_control::FamilyDemand;
use packhorse_scenario::ModelEntry;

use super::values::{ScenarioError, field_error};

/// Models that answer the same requests with different accuracy: a request for any of them goes to the most accurate one that can answer it in
/// time.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name.
    pub name: String,
    /// The models, at least two, the most accurate first; of equal ones the earlier of the scenario.
    pub variants: Vec<Variant>,
}

/// A model of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// The model.
    pub model: ModelIndex,
    /// The part of its answers that are right.
    pub accuracy: Percent,
}

/// Reads the families, ascending by name.
pub(super) fn parse_families(
    entries: &[ModelEntry],
    models: &[DemandedModel],
) -> Result<Vec<Family>, ScenarioError> {
    let mut families: BTreeMap<&str, Vec<Variant>> = BTreeMap::new();
    for (i, entry) in entries.iter().enumerate() {
        let at = |key: &str| format!("models[{i}].{key}");
        let accuracy = entry.accuracy.map(|accuracy| {
            Percent::new(accuracy).or_else(|_| {
                let problem = format!("expected between 0 and 100 percent, not {accuracy}");
                field_error(at("accuracy"), problem)
            })
        });
        let accuracy = accuracy.transpose()?;
        match (&entry.family, accuracy) {
            (Some(family), Some(accuracy)) => families.entry(family).or_default().push(Variant {
                model: ModelIndex(i),
                accuracy,
            }),
            (Some(_), None) => {
                return field_error(at("accuracy"), "required for a model of a family");
            }
            (None, _) => {}
        }
    }
    let families = families.into_iter();
    families
        .map(|(name, mut variants)| {
            check_family(name, &variants, models)?;
            variants.sort_by(|a, b| by_accuracy(a.accuracy, b.accuracy));
            Ok(Family {
                name: name.to_owned(),
                variants,
            })
        })
        .collect()
}

/// Returns the families whose rates plans spread over their variants, as far as their models can answer each other's requests in a simulation: they
/// have the same SLO and payload.
pub(super) fn families_of(demands: &[FamilyDemand], models: &[DemandedModel]) -> Vec<Family> {
    let family = |demand: &FamilyDemand| {
        let variants = demand.variants.iter().flat_map(|variant| {
            let ids = variant.shares.iter().map(|(id, _)| id);
            let indices = ids.filter_map(|id| models.iter().position(|model| model.id == *id));
            indices.map(|index| Variant {
                model: ModelIndex(index),
                accuracy: variant.accuracy,
            })
        });
        let variants: Vec<Variant> = variants.collect();
        let name = demand.name.as_str();
        let is_family = !variants.is_empty() && check_family(name, &variants, models).is_ok();
        is_family.then(|| Family {
            name: name.to_owned(),
            variants,
        })
    };
    demands.iter().filter_map(family).collect()
}

/// Checks that the models can answer each other's requests.
fn check_family(
    name: &str,
    variants: &[Variant],
    models: &[DemandedModel],
) -> Result<(), ScenarioError> {
    let first = variants[0].model.0;
    let max = VariantOf::MAX_VARIANTS;
    if !(2..=max).contains(&variants.len()) {
        let problem = format!(
            "expected 2 to {max} models of family {name:?}, not {}",
            variants.len()
        );
        return field_error(format!("models[{first}].family"), problem);
    }
    let same = |key: &str, value: fn(&DemandedModel) -> f64| {
        let expected = value(&models[first]);
        let mut variants = variants.iter();
        let other = variants.find(|variant| {
            let value = value(&models[variant.model.0]);
            value.total_cmp(&expected).is_ne()
        });
        other.map_or(Ok(()), |other| {
            let problem = format!("expected {expected}, as of models[{first}] in family {name:?}");
            field_error(format!("models[{}].{key}", other.model.0), problem)
        })
    };
    same("slo_ms", |model| model.slo.as_secs_f64() * 1e3)?;
    same("payload_bytes", |model| model.payload.as_u64() as f64)
}
