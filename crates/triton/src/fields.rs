//! The fields of a message by their names, with errors that name field and line.

use std::fmt::Display;

use crate::text_format::{Field, TextError, Value};

/// A message, whose fields are read by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// What it is, for errors; empty for the whole text.
    what: &'a str,
    fields: &'a [Field],
}

/// Reads a number as protobuf writes it: one that begins with 0 is octal, with 0x hexadecimal.
fn whole_number(word: &str) -> Option<i64> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |rest| (-1, rest));
    let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    Some(sign * i64::from_str_radix(digits, radix).ok()?)
}

impl<'a> Message<'a> {
    pub(crate) fn new(what: &'a str, fields: &'a [Field]) -> Self {
        Self { what, fields }
    }

    pub(crate) fn fields(self) -> &'a [Field] {
        self.fields
    }

    /// Returns the field of a name, which is there at most once.
    pub(crate) fn one(self, name: &str) -> Result<Option<&'a Field>, TextError> {
        let mut found = self.fields.iter().filter(|field| field.name == name);
        match (found.next(), found.next()) {
            (_, Some(second)) => Err(self.error(second, "is there twice")),
            (first, None) => Ok(first),
        }
    }

    pub(crate) fn text(self, name: &str) -> Result<Option<(&'a str, usize)>, TextError> {
        let Some(field) = self.one(name)? else {
            return Ok(None);
        };
        match &field.value {
            Value::Text(text) => Ok(Some((text, field.line))),
            _ => Err(self.error(field, "expected a string in quotes")),
        }
    }

    pub(crate) fn number(self, name: &str) -> Result<Option<(i64, usize)>, TextError> {
        let Some(field) = self.one(name)? else {
            return Ok(None);
        };
        Ok(Some((self.as_number(field)?, field.line)))
    }

    /// Returns all numbers of a name.
    pub(crate) fn numbers(self, name: &str) -> Result<Vec<i64>, TextError> {
        let fields = self.fields.iter().filter(|field| field.name == name);
        fields.map(|field| self.as_number(field)).collect()
    }

    fn as_number(self, field: &Field) -> Result<i64, TextError> {
        let number = match &field.value {
            Value::Word(word) => whole_number(word),
            _ => None,
        };
        number.ok_or_else(|| self.error(field, "expected a whole number"))
    }

    /// Returns the name of a constant.
    pub(crate) fn word(self, name: &str) -> Result<Option<(&'a str, usize)>, TextError> {
        let Some(field) = self.one(name)? else {
            return Ok(None);
        };
        match &field.value {
            Value::Word(word) => Ok(Some((word, field.line))),
            _ => Err(self.error(field, "expected a word without quotes")),
        }
    }

    /// Returns true for a flag that is set.
    pub(crate) fn flag(self, name: &str) -> Result<bool, TextError> {
        match self.word(name)? {
            Some(("true" | "True" | "t" | "1", _)) => Ok(true),
            None | Some(("false" | "False" | "f" | "0", _)) => Ok(false),
            Some((_, line)) => Err(TextError {
                line,
                problem: format!("{}: expected true or false", self.path(name)),
            }),
        }
    }

    /// Returns all messages of a name.
    pub(crate) fn messages<'b>(self, name: &'b str) -> Result<Vec<(Message<'b>, usize)>, TextError>
    where
        'a: 'b,
    {
        let fields = self.fields.iter().filter(|field| field.name == name);
        let message = |field: &'a Field| match &field.value {
            Value::Message(fields) => Ok((Message { what: name, fields }, field.line)),
            _ => Err(self.error(field, "expected a message in braces")),
        };
        fields.map(message).collect()
    }

    /// Returns the message of a name, which is there at most once.
    pub(crate) fn message<'b>(self, name: &'b str) -> Result<Option<Message<'b>>, TextError>
    where
        'a: 'b,
    {
        self.one(name)?;
        let found = self.messages(name)?;
        Ok(found.into_iter().next().map(|(message, _)| message))
    }

    /// Returns the error about a field.
    pub(crate) fn error(self, field: &Field, problem: impl Display) -> TextError {
        TextError {
            line: field.line,
            problem: format!("{}: {problem}", self.path(&field.name)),
        }
    }

    /// Returns the name of a field with that of its message.
    pub(crate) fn path(self, name: &str) -> String {
        match self.what {
            "" => name.to_owned(),
            what => format!("{what}.{name}"),
        }
    }
}
