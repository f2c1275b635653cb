//! The place of a field in a message, for errors. It becomes text only in an error, because most messages have none.

use std::fmt;

/// The most characters of a key that an error quotes.
const MAX_KEY: usize = 64;

/// A place in a message: `id`, `inputs[0]`, `inputs[0].name`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldPath<'a> {
    /// A field of the message.
    Field(&'a str),
    /// An object in the list of this name.
    Item(&'a str, usize),
    /// A field of the object at a place.
    Member(&'a FieldPath<'a>, &'a str),
}

impl<'a> FieldPath<'a> {
    /// Returns the place of a field of the object here.
    pub(crate) fn member(&'a self, key: &'a str) -> Self {
        Self::Member(self, key)
    }
}

impl<'a> From<&'a str> for FieldPath<'a> {
    fn from(field: &'a str) -> Self {
        Self::Field(field)
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => f.write_str(field),
            Self::Item(list, index) => write!(f, "{list}[{index}]"),
            Self::Member(object, key) => {
                write!(f, "{object}.")?;
                let excerpt = key.chars().take(MAX_KEY);
                excerpt
                    .flat_map(char::escape_debug)
                    .try_for_each(|character| fmt::Write::write_char(f, character))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_in_code() {
        let input = FieldPath::Item("inputs", 2);
        let parameters = input.member("parameters");
        assert_eq!(FieldPath::from("id").to_string(), "id");
        assert_eq!(input.to_string(), "inputs[2]");
        assert_eq!(
            parameters.member("a\n\"").to_string(),
            "inputs[2].parameters.a\\n\\\""
        );
    }

    #[test]
    fn a_long_key_is_cut() {
        let key = "ä".repeat(1000);
        let path = FieldPath::from("parameters");
        let text = path.member(&key).to_string();
        assert_eq!(text, format!("parameters.{}", "ä".repeat(MAX_KEY)));
    }
}
