//! The files of a fleet that are about more than one version of a model: `policy.json`, `nodes.json`, `keys.json`, and a model's `split.json`.

use std::collections::BTreeMap;

use packhorse_api::{KeyChange, ModelChange, PolicyChange};
use packhorse_cluster::NodeName;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::declared::{DeclaredKey, KeyName};

/// The reason why a file, or an entry of one, cannot be read. The field comes first.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DocumentError(String);

/// Reads `policy.json`, which is the body of `PUT /v1/policy`.
///
/// # Errors
/// If it is none.
pub fn read_policy(text: &[u8]) -> Result<PolicyChange, DocumentError> {
    read(text)
}

/// Reads `split.json`: the fields `split` and `sticky` of `PATCH /v1/models/{name}`.
///
/// # Errors
/// If it has other fields, or one is wrong.
pub fn read_split(text: &[u8]) -> Result<ModelChange, DocumentError> {
    let fields: Map<String, Value> = read(text)?;
    for field in fields.keys() {
        if field != "split" && field != "sticky" {
            let problem = format!("{field}: expected split and sticky only");
            return Err(DocumentError(problem));
        }
    }
    for (field, value) in &fields {
        // One by one, so that the error names the field.
        let alone = Map::from_iter([(field.clone(), value.clone())]);
        from_value::<ModelChange>(Value::Object(alone))
            .map_err(|error| DocumentError(format!("{field}: {error}")))?;
    }
    from_value(Value::Object(fields))
}

/// Reads `nodes.json`: `cordoned` or `open` by the name of the node. The result is true for cordoned ones.
///
/// # Errors
/// If it has another form.
pub fn read_nodes(text: &[u8]) -> Result<BTreeMap<NodeName, bool>, DocumentError> {
    let nodes: BTreeMap<String, Value> = read(text)?;
    let nodes = nodes.into_iter().map(|(name, state)| {
        let parsed = name.parse::<NodeName>();
        let parsed = parsed.map_err(|error| DocumentError(format!("{name:?}: {error}")))?;
        match state.as_str() {
            Some("cordoned") => Ok((parsed, true)),
            Some("open") => Ok((parsed, false)),
            _ => Err(DocumentError(format!(
                "{name}: expected \"open\" or \"cordoned\", got {state}"
            ))),
        }
    });
    nodes.collect()
}

/// Reads `keys.json`: a list of limits, each with the `name` or the `id` of its key and the fields of `PATCH /v1/keys/{id}`. A wrong entry does not concern
/// the others.
///
/// # Errors
/// If it is no list.
pub fn read_keys(text: &[u8]) -> Result<(Vec<DeclaredKey>, Vec<DocumentError>), DocumentError> {
    let entries: Vec<Value> = read(text)?;
    let (mut keys, mut wrong) = (Vec::new(), Vec::new());
    for (place, entry) in entries.into_iter().enumerate() {
        match read_key(entry) {
            Ok(key) => keys.push(key),
            Err(error) => wrong.push(DocumentError(format!("[{place}]: {error}"))),
        }
    }
    Ok((keys, wrong))
}

fn read_key(entry: Value) -> Result<DeclaredKey, DocumentError> {
    let mut fields: Map<String, Value> = from_value(entry)?;
    let mut take = |field: &str| match fields.remove(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(DocumentError(format!(
            "{field}: expected a text, got {other}"
        ))),
    };
    let key = match (take("id")?, take("name")?) {
        (Some(id), None) => KeyName::Id(id),
        (None, Some(name)) => KeyName::Name(name),
        _ => return Err(DocumentError("expected either name or id".to_owned())),
    };
    let limits: KeyChange = from_value(Value::Object(fields))?;
    Ok(DeclaredKey { key, limits })
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, DocumentError> {
    serde_json::from_slice(text).map_err(|error| DocumentError(error.to_string()))
}

fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, DocumentError> {
    serde_json::from_value(value).map_err(|error| DocumentError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_has_its_two_fields_and_null_is_one() {
        let read = |text: &str| read_split(text.as_bytes());
        let split = read(r#"{"split": {"1": 90, "2": 10}, "sticky": "request-id"}"#).unwrap();
        assert!(matches!(split.split, Some(Some(_))));
        assert!(split.sticky.is_some());
        assert_eq!(read(r#"{"split": null}"#).unwrap().split, Some(None));
        for (text, expected) in [
            (
                r#"{"split": {"1": 90}}"#,
                "split: the shares must sum to 100 %",
            ),
            (r#"{"slo_ms": 5}"#, "slo_ms: expected split and sticky only"),
            (r#"{"sticky": "x"}"#, "sticky: "),
            ("[", "expected a map"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_wrong_key_does_not_concern_the_others() {
        let (keys, wrong) = read_keys(
            br#"[{"name": "a", "rate_rps": null}, {"rate_rps": 5}, {"id": "x", "scopes": []},
                {"id": "1f", "max_in_flight": 3}, {"id": 7}, 5]"#,
        )
        .unwrap();
        let expected = [
            (KeyName::Name("a".to_owned()), Some(None), None),
            (KeyName::Id("1f".to_owned()), None, Some(Some(3))),
        ];
        let keys = keys.into_iter();
        let keys: Vec<_> = keys
            .map(|key| (key.key, key.limits.rate_rps, key.limits.max_in_flight))
            .collect();
        assert_eq!(keys, expected);
        let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        for (error, expected) in wrong.iter().zip([
            "[1]: expected either name or id",
            "[2]: unknown field `scopes`",
            "[4]: id: expected a text, got 7",
            "[5]: invalid type",
        ]) {
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(wrong.len(), 4);
    }

    #[test]
    fn nodes_are_open_or_cordoned() {
        let nodes = read_nodes(br#"{"n1": "cordoned", "n2": "open"}"#).unwrap();
        let nodes: Vec<_> = nodes.into_iter().map(|(n, c)| (n.to_string(), c)).collect();
        assert_eq!(nodes, [("n1".to_owned(), true), ("n2".to_owned(), false)]);
        for text in [
            r#"{"n1": "drained"}"#,
            r#"{"n1": true}"#,
            r#"{"a b": "open"}"#,
        ] {
            assert!(read_nodes(text.as_bytes()).is_err(), "{text}");
        }
    }
}
