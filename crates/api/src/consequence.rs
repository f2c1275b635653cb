//! The consequences of an admin's change: what it takes from models.

use packhorse_cluster::ModelName;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

/// A model from which a change takes a part of its planned goodput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Consequence {
    /// The name of the model, whose versions count together, or of the family, whose variants do.
    #[schema(value_type = String)]
    pub model: ModelName,
    /// The goodput that is planned for the model without the change, in requests per second within the SLO.
    pub before_rps: f64,
    /// The goodput that is planned for the model with the change, in requests per second within the SLO.
    pub after_rps: f64,
    /// The reason why it is less, as text for people.
    pub reason: String,
}

/// The consequences of a change for the models of the cluster. They are found by planning twice, without the change and with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Consequences {
    /// The models from which the change takes more than a hundredth of their planned goodput, by name; empty if there are none. The
    /// changed model is one of them if it gets less of what it asks for. Null if the consequences are not known.
    pub consequences: Option<Vec<Consequence>>,
    /// The reason why the consequences are not known, as text for people; absent if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequences_unknown: Option<String>,
}

/// A model, node or policy that an admin has changed or removed, with the consequences of the change.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Changed<T> {
    /// The model, node or policy as it is now, or what was removed.
    #[serde(flatten)]
    pub view: T,
    /// The consequences of the change.
    #[serde(flatten)]
    pub consequences: Consequences,
}

/// The answer to a change that may be a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChangeAnswer<T> {
    /// The change is made.
    Changed(Changed<T>),
    /// The consequences of a change that is not made.
    DryRun(DryRunAnswer),
}

/// The answer to a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DryRunAnswer {
    /// True: the change is not made.
    #[schema(required = true)]
    dry_run: bool,
    /// The consequences that the change would have.
    #[serde(flatten)]
    pub consequences: Consequences,
}

impl From<Consequences> for DryRunAnswer {
    fn from(consequences: Consequences) -> Self {
        let dry_run = true;
        Self {
            dry_run,
            consequences,
        }
    }
}

/// Reads the object once for each part. A derived implementation with flattened fields does not read maps with numbers as keys, such as
/// the split of a model.
impl<'de, T: DeserializeOwned> Deserialize<'de> for Changed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = serde_json::Value::deserialize(deserializer)?;
        let consequences = Consequences::deserialize(&object);
        Ok(Self {
            view: serde_json::from_value(object).map_err(serde::de::Error::custom)?,
            consequences: consequences.map_err(serde::de::Error::custom)?,
        })
    }
}

impl Consequences {
    /// Returns known consequences.
    pub fn known(consequences: Vec<Consequence>) -> Self {
        Self {
            consequences: Some(consequences),
            consequences_unknown: None,
        }
    }

    /// Returns consequences that are not known for this reason.
    pub fn unknown(reason: &impl ToString) -> Self {
        Self {
            consequences: None,
            consequences_unknown: Some(reason.to_string()),
        }
    }

    /// Returns the consequences for models other than these, which are changed.
    pub fn for_others<'a>(
        &'a self,
        changed: &'a [&ModelName],
    ) -> impl Iterator<Item = &'a Consequence> {
        let all = self.consequences.iter().flatten();
        all.filter(|consequence| !changed.contains(&&consequence.model))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn loss() -> Consequence {
        Consequence {
            model: "a".parse().unwrap(),
            before_rps: 50.0,
            after_rps: 0.0,
            reason: "no device is left for it".to_owned(),
        }
    }

    #[test]
    fn consequences_are_written_beside_the_fields_of_what_was_changed() {
        let changed = Changed {
            view: json!({"name": "b"}),
            consequences: Consequences::known(vec![loss()]),
        };
        let expected = json!({
            "name": "b",
            "consequences": [{"model": "a", "before_rps": 50.0, "after_rps": 0.0, "reason": "no device is left for it"}],
        });
        assert_eq!(
            serde_json::to_value(ChangeAnswer::Changed(changed)).unwrap(),
            expected
        );
    }

    #[test]
    fn what_was_changed_is_read_whatever_its_keys_are() {
        /// A view with a map like the split of a model.
        #[derive(Debug, PartialEq, Deserialize)]
        struct View {
            split: std::collections::BTreeMap<u32, u32>,
        }
        let answer = r#"{"split": {"1": 90, "2": 10}, "consequences": []}"#;
        let changed: Changed<View> = serde_json::from_str(answer).unwrap();
        let split = [(1, 90), (2, 10)].into();
        assert_eq!(changed.view, View { split });
        assert_eq!(changed.consequences, Consequences::known(Vec::new()));
        let without = r#"{"consequences": []}"#;
        let error = serde_json::from_str::<Changed<View>>(without).unwrap_err();
        assert!(error.to_string().contains("split"), "{error}");
    }

    #[test]
    fn unknown_consequences_are_null_and_have_a_reason() {
        let unknown = Consequences::unknown(&"the planner is busy");
        let expected = json!({"dry_run": true, "consequences": null, "consequences_unknown": "the planner is busy"});
        let answer: ChangeAnswer<()> = ChangeAnswer::DryRun(unknown.clone().into());
        assert_eq!(serde_json::to_value(answer).unwrap(), expected);
        assert_eq!(
            serde_json::from_value::<Consequences>(expected).unwrap(),
            unknown
        );
    }

    #[test]
    fn the_changed_model_is_none_of_the_others() {
        let consequences = Consequences::known(vec![loss()]);
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert_eq!(consequences.for_others(&[&a, &b]).count(), 0);
        assert_eq!(consequences.for_others(&[&b]).count(), 1);
        assert_eq!(consequences.for_others(&[]).count(), 1);
    }
}
