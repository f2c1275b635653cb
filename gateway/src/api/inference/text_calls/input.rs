//! Texts in JSON: one, or a list.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use utoipa::ToSchema;

use super::MAX_TEXTS;

/// One text or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Texts {
    /// The texts.
    pub(super) texts: Vec<String>,
    /// True if it was a list.
    pub(super) is_list: bool,
}

/// The description of [`Texts`] in the API's document.
#[derive(ToSchema)]
#[schema(as = Texts)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is a description")]
pub(super) enum TextsSchema {
    /// A text.
    One(String),
    /// At most 2048 texts.
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Texts, E> {
        Ok(Texts {
            texts: vec![text.to_owned()],
            is_list: false,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
        let texts = limited(&mut list, "texts")?;
        let texts: Vec<String> = texts.into_iter().map(|Text(text)| text).collect();
        if texts.is_empty() {
            return Err(de::Error::custom("an empty list"));
        }
        Ok(Texts {
            texts,
            is_list: true,
        })
    }
}

/// Reads a list of so many elements as a call may have.
pub(super) fn limited<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    list: &mut A,
    what: &str,
) -> Result<Vec<T>, A::Error> {
    let mut elements = Vec::new();
    while let Some(element) = list.next_element()? {
        if elements.len() == MAX_TEXTS {
            let problem = format!("more {what} than the limit of {MAX_TEXTS}");
            return Err(de::Error::custom(problem));
        }
        elements.push(element);
    }
    Ok(elements)
}

/// A text of a list.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Text, E> {
        Err(E::custom(NUMBERS))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Text, A::Error> {
        let is_number = list.next_element::<u64>().is_ok();
        Err(de::Error::custom(if is_number { NUMBERS } else { LISTS }))
    }
}

/// The error of a client that cuts texts itself, by the tokenizer of another model.
const NUMBERS: &str = "numbers of tokens in place of texts: they are those of another tokenizer than the model's; send the texts (LangChain: check_embedding_ctx_length=False)";

/// The error of a client that sends lists in place of texts.
const LISTS: &str = "a list in place of a text; two texts are compared by `rerank`";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Texts, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn one_text_or_a_list_of_them_is_read() {
        let one = read(r#""a""#).unwrap();
        assert_eq!((one.texts, one.is_list), (vec!["a".to_owned()], false));
        let list = read(r#"["a",""]"#).unwrap();
        assert_eq!((list.texts.len(), list.is_list), (2, true));
    }

    #[test]
    fn whatever_else_there_is_is_refused_with_what_was_expected() {
        for (json, expected) in [
            ("[]", "an empty list"),
            ("[[1,2]]", NUMBERS),
            ("[1,2]", NUMBERS),
            (r#"[["a","b"]]"#, LISTS),
            ("5", "expected a text or a list of texts"),
            (r#"["a",null]"#, "expected a text"),
            (r#"["\ud800"]"#, "unexpected end of hex escape"),
            (r#"["\ud800\u0041"]"#, "surrogate"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
        let many = format!("[{}\"a\"]", "\"a\",".repeat(MAX_TEXTS));
        assert!(read(&many).unwrap_err().contains("the limit of 2048"));
    }
}
