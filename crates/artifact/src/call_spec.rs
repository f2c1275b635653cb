//! The call of a program of `torch.export`, and the make-up of its answer: trees of tuples, lists and dicts, as JSON.

use serde::Deserialize;

use crate::signature::Signature;

/// The most levels of a tree.
const MAX_DEPTH: usize = 16;

/// A tree: a leaf, which is a tensor, or a container of a type with its keys as JSON in the context.
#[derive(Debug, Deserialize)]
struct Node {
    #[serde(rename = "type")]
    kind: Option<String>,
    context: Option<String>,
    #[serde(default)]
    children_spec: Vec<Node>,
}

/// Returns the names of the leaves in the arguments of a call, which are a tuple of the positional ones and a dict of the others. Positional
/// ones have none.
pub(crate) fn names_of_arguments(text: &str) -> Option<Vec<Option<String>>> {
    let Node { children_spec, .. } = parse(text)?;
    let [positional, by_name] = &children_spec[..] else {
        return None;
    };
    let mut names = Vec::new();
    collect(positional, None, 0, &mut names)?;
    collect(by_name, None, 0, &mut names)?;
    Some(names)
}

/// Returns the names of the leaves in an answer.
pub(crate) fn names_of_results(text: &str) -> Option<Vec<Option<String>>> {
    let mut names = Vec::new();
    collect(&parse(text)?, None, 0, &mut names)?;
    Some(names)
}

/// Returns the tree behind the number of the format, which is 1.
fn parse(text: &str) -> Option<Node> {
    let (version, tree): (u32, Node) = serde_json::from_str(text).ok()?;
    (version == 1).then_some(tree)
}

/// Collects the names of the leaves: their keys, and below named ones the keys or places, as in `state_0`.
fn collect(
    node: &Node,
    name: Option<&str>,
    depth: usize,
    names: &mut Vec<Option<String>>,
) -> Option<()> {
    if depth > MAX_DEPTH || names.len() >= Signature::MAX_TENSORS {
        return None;
    }
    if node.kind.is_none() {
        names.push(name.map(ToOwned::to_owned));
        return Some(());
    }
    let keys = node.context.as_deref().and_then(keys);
    let keys = keys.filter(|keys| keys.len() == node.children_spec.len());
    for (i, child) in node.children_spec.iter().enumerate() {
        let key = keys.as_ref().map(|keys| keys[i].clone());
        let of_child = match (name, key) {
            (None, key) => key,
            (Some(name), Some(key)) => Some(format!("{name}_{key}")),
            (Some(name), None) => Some(format!("{name}_{i}")),
        };
        collect(child, of_child.as_deref(), depth + 1, names)?;
    }
    Some(())
}

/// Returns the keys in a context, if it has any.
fn keys(context: &str) -> Option<Vec<String>> {
    serde_json::from_str(context).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn tuple(children: &str) -> String {
        format!(r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{children}]}}"#)
    }

    fn dict(keys: &str, children: &str) -> String {
        format!(
            r#"{{"type": "builtins.dict", "context": "{keys}", "children_spec": [{children}]}}"#
        )
    }

    #[test]
    fn keywords_are_names_and_positions_are_none() {
        let two = format!("{LEAF}, {LEAF}");
        let call = tuple(&format!(
            "{}, {}",
            tuple(LEAF),
            dict(r#"[\"ids\", \"mask\"]"#, &two)
        ));
        let names = names_of_arguments(&format!("[1, {call}]")).unwrap();
        let expected = [None, Some("ids".to_owned()), Some("mask".to_owned())];
        assert_eq!(names, expected);
    }

    #[test]
    fn results_within_others_are_named_after_both() {
        let state = dict(r#"[\"state\"]"#, &tuple(&format!("{LEAF}, {LEAF}")));
        let names = names_of_results(&format!("[1, {state}]")).unwrap();
        assert_eq!(
            names,
            [Some("state_0".to_owned()), Some("state_1".to_owned())]
        );
        assert_eq!(names_of_results(&format!("[1, {LEAF}]")), Some(vec![None]));
        assert_eq!(names_of_results(&format!("[2, {LEAF}]")), None);
        assert_eq!(names_of_arguments(&format!("[1, {LEAF}]")), None);
    }

    #[test]
    fn a_tree_that_is_too_deep_or_too_wide_is_not_read() {
        let deep = (0..40).fold(LEAF.to_owned(), |tree, _| tuple(&tree));
        assert_eq!(names_of_results(&format!("[1, {deep}]")), None);
        let wide = vec![LEAF; 300].join(",");
        assert_eq!(names_of_results(&format!("[1, {}]", tuple(&wide))), None);
        let deeper = (0..4000).fold(LEAF.to_owned(), |tree, _| tuple(&tree));
        assert_eq!(names_of_results(&format!("[1, {deeper}]")), None);
    }
}
