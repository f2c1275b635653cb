//! A cursor over JSON text that reads objects, lists, strings and numbers itself and leaves all other values to `serde_json`.
//!
//! Tensor data is most of a message and must be written directly to the tensor's buffer, which `Deserialize` cannot do; and errors
//! must name the field, which `serde` does not know.

use std::borrow::Cow;

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

use crate::{JsonError, number::Number, short_number::ShortNumber};

/// A position in a JSON text.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, JsonError> {
        match str::from_utf8(bytes) {
            Ok(text) => Ok(Self { text, at: 0 }),
            Err(e) => Err(JsonError {
                problem: "invalid UTF-8".to_owned(),
                at: e.valid_up_to(),
            }),
        }
    }

    /// Returns the number of remaining bytes.
    pub(crate) fn remaining(&self) -> usize {
        self.text.len() - self.at
    }

    /// Returns the next byte that is not white space, without consuming it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// Consumes the next byte if it is `byte`, and returns true if it was.
    #[inline]
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Consumes numbers that are short, with the commas after them, at most `limit` of them. Appends their values by `append`, and returns
    /// how many there were. It ends at the first number of which `value` makes nothing.
    #[inline]
    pub(crate) fn short_numbers<T>(
        &mut self,
        limit: u64,
        value: impl Fn(&ShortNumber) -> Option<T>,
        mut append: impl FnMut(T),
    ) -> u64 {
        self.peek();
        let mut count = 0;
        loop {
            let before = count;
            count += self.numbers_by(ShortNumber::scan, limit - count, &value, &mut append);
            count += self.numbers_by(ShortNumber::scan_long, limit - count, &value, &mut append);
            if count == before {
                return count;
            }
        }
    }

    /// Does the same for the numbers that `scan` returns.
    #[inline]
    fn numbers_by<T>(
        &mut self,
        scan: impl Fn(&[u8], usize) -> Option<ShortNumber>,
        limit: u64,
        value: impl Fn(&ShortNumber) -> Option<T>,
        mut append: impl FnMut(T),
    ) -> u64 {
        // The position is a variable of this loop alone, so that it is in a register: every number waits for the one before it.
        let text = self.text.as_bytes();
        let mut at = self.at;
        let mut count = 0;
        while count < limit
            && let Some(number) = scan(text, at)
            && let Some(value) = value(&number)
        {
            append(value);
            count += 1;
            at += number.len() + 1;
            while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
                at += 1;
            }
        }
        self.at = at;
        count
    }

    /// Consumes the next number, if there is one.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<Number<'a>> {
        self.peek();
        let number = Number::scan(&self.text[self.at..])?;
        self.at += number.text().len();
        Some(number)
    }

    /// Consumes `word` if it is next, and returns true if it was.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// Consumes the next string and returns it unescaped.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a string"));
        }
        let start = self.at + 1;
        let rest = &self.text[start..];
        match rest
            .bytes()
            .position(|byte| byte == b'"' || byte == b'\\' || byte < b' ')
        {
            Some(len) if rest.as_bytes()[len] == b'"' => {
                self.at = start + len + 1;
                Ok(Cow::Borrowed(&rest[..len]))
            }
            _ => self.read::<String>().map(Cow::Owned),
        }
    }

    /// Consumes the next value of any kind and depth.
    pub(crate) fn skip(&mut self) -> Result<(), JsonError> {
        self.value::<IgnoredAny>().map(drop)
    }

    /// Consumes the next value as a `T`.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> Result<T, JsonError> {
        self.value()
    }

    /// Consumes the next value and returns its text.
    pub(crate) fn raw_value(&mut self) -> Result<&'a str, JsonError> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(&self.text[start..self.at])
    }

    fn value<T: Deserialize<'a>>(&mut self) -> Result<T, JsonError> {
        self.peek();
        let mut values = serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter::<T>();
        match values.next() {
            Some(Ok(value)) => {
                self.at += values.byte_offset();
                Ok(value)
            }
            Some(Err(e)) => {
                // serde_json counts the position in its message from the value's start: leave it out.
                let text = e.to_string();
                let problem = text
                    .split(" at line ")
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                Err(JsonError {
                    problem,
                    at: self.at,
                })
            }
            None => Err(self.expected("a value")),
        }
    }

    /// Consumes an object. `member` is called after each key and must consume the value.
    pub(crate) fn object<E: From<JsonError>>(
        &mut self,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.eat(b'{') {
            return Err(self.expected("an object").into());
        }
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            if !self.eat(b':') {
                return Err(self.expected("\":\"").into());
            }
            member(self, &key)?;
            if self.eat(b'}') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.expected("\",\" or \"}\"").into());
            }
        }
    }

    /// Consumes a list. `item` is called with each index and must consume the value.
    pub(crate) fn list<E: From<JsonError>>(
        &mut self,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.eat(b'[') {
            return Err(self.expected("a list").into());
        }
        if self.eat(b']') {
            return Ok(());
        }
        for index in 0.. {
            item(self, index)?;
            if self.eat(b']') {
                break;
            }
            if !self.eat(b',') {
                return Err(self.expected("\",\" or \"]\"").into());
            }
        }
        Ok(())
    }

    /// Checks that only white space is left.
    pub(crate) fn finish(&mut self) -> Result<(), JsonError> {
        if self.peek().is_none() {
            Ok(())
        } else {
            Err(self.expected("the end"))
        }
    }

    /// Returns the error that `what` was expected at this position.
    #[cold]
    pub(crate) fn expected(self, what: &str) -> JsonError {
        JsonError {
            problem: format!("expected {what}, found {}", self.describe_next()),
            at: self.at,
        }
    }

    /// Describes the text at this position in a few characters, for an error.
    #[cold]
    pub(crate) fn describe_next(mut self) -> String {
        let Some(first) = self.peek() else {
            return "the end".to_owned();
        };
        let in_word = |c: &char| c.is_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let rest = &self.text[self.at..];
        let token: String = match first {
            b'"' => return "a string".to_owned(),
            b'[' => return "a list".to_owned(),
            b'{' => return "an object".to_owned(),
            _ if rest.starts_with(|c| in_word(&c)) => {
                rest.chars().take_while(in_word).take(24).collect()
            }
            _ => rest.chars().take(1).collect(),
        };
        token.escape_debug().to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn walk(cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match cursor.peek() {
            Some(b'{') => cursor.object(|cursor, _| walk(cursor)),
            Some(b'[') => cursor.list(|cursor, _| walk(cursor)),
            Some(b'"') => cursor.string().map(drop),
            _ => cursor.skip(),
        }
    }

    fn accepts(text: &[u8]) -> bool {
        Cursor::new(text)
            .and_then(|mut cursor| walk(&mut cursor).and_then(|()| cursor.finish()))
            .is_ok()
    }

    fn check(text: &str, problem: &str) {
        let mut cursor = Cursor::new(text.as_bytes()).unwrap();
        let error = walk(&mut cursor)
            .and_then(|()| cursor.finish())
            .unwrap_err();
        assert_eq!(error.to_string(), problem, "{text}");
    }

    #[test]
    fn errors_name_the_found_text_and_its_offset() {
        check("", "expected a value, found the end at byte 0");
        check(r#"{"a" 1}"#, r#"expected ":", found 1 at byte 5"#);
        check(
            r#"{"a":1 "b"}"#,
            r#"expected "," or "}", found a string at byte 7"#,
        );
        check("[1,,2]", "expected value at byte 3");
        check("[1 2]", r#"expected "," or "]", found 2 at byte 3"#);
        check("[1]]", "expected the end, found ] at byte 3");
        check("{1:2}", "expected a string, found 1 at byte 1");
        check("[nul]", "expected ident at byte 1");
        check(r#"["\ud800"]"#, "unexpected end of hex escape at byte 1");
        let error = Cursor::new(b"[\"\xff\"]").err().unwrap();
        assert_eq!(error.to_string(), "invalid UTF-8 at byte 2");
    }

    #[test]
    fn deep_nesting_is_skipped_without_a_deep_stack() {
        let bomb = "[".repeat(1_000_000);
        let mut cursor = Cursor::new(bomb.as_bytes()).unwrap();
        assert!(cursor.skip().is_err());
        let balanced = bomb.clone() + &"]".repeat(1_000_000);
        let mut cursor = Cursor::new(balanced.as_bytes()).unwrap();
        assert_eq!(cursor.skip().and_then(|()| cursor.finish()), Ok(()));
    }

    proptest! {
        #[test]
        fn accepts_what_serde_json_accepts(text in r#"[\[\]{}:," \\ntrue0-9.eE+-]{0,24}"#) {
            let reference = serde_json::from_str::<serde_json::Value>(&text);
            // A number beyond every float is an error only when its value is needed.
            let beyond = reference.as_ref().is_err_and(|e| e.to_string().starts_with("number out of range"));
            prop_assert!(accepts(text.as_bytes()) == reference.is_ok() || beyond, "{}: {:?}", text, reference);
        }

        #[test]
        fn strings_are_read_as_written(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            let mut cursor = Cursor::new(json.as_bytes()).unwrap();
            prop_assert_eq!(cursor.string().unwrap(), text);
        }
    }
}
