//! Protobuf's text format as a tree of fields, without a schema: words, strings, messages in both kinds of braces, lists, comments.
//!
//! Source: the text format language specification of Protocol Buffers. Names of extensions in brackets are not read.

/// The deepest message within messages.
const MAX_DEPTH: usize = 32;
/// The most fields of a text.
const MAX_FIELDS: usize = 65_536;

/// A field of a message. A list is as many fields of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// The line of its name, from 1 on.
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number, or the name of a constant.
    Word(String),
    Text(String),
    Message(Vec<Field>),
}

/// The reason why a text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub(crate) struct TextError {
    pub(crate) line: usize,
    pub(crate) problem: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

/// Reads a text.
pub(crate) fn parse(text: &str) -> Result<Vec<Field>, TextError> {
    let tokens = Tokens::read(text)?;
    let mut parser = Parser {
        tokens,
        next: 0,
        fields: 0,
    };
    parser.message(None, 0)
}

/// The tokens of a text, with their lines.
struct Tokens(Vec<(Token, usize)>);

impl Tokens {
    fn read(text: &str) -> Result<Self, TextError> {
        let mut tokens: Vec<(Token, usize)> = Vec::new();
        let mut chars = text.trim_start_matches('\u{feff}').chars().peekable();
        let mut line = 1;
        while let Some(char) = chars.next() {
            match char {
                '\n' => line += 1,
                char if char.is_whitespace() => {}
                '#' => while chars.next_if(|char| *char != '\n').is_some() {},
                '"' | '\'' => {
                    let part =
                        string(&mut chars, char).map_err(|problem| TextError { line, problem })?;
                    // Strings that follow each other are one.
                    match tokens.last_mut() {
                        Some((Token::Text(text), _)) => text.push_str(&part),
                        _ => tokens.push((Token::Text(part), line)),
                    }
                }
                '{' | '}' | '<' | '>' | '[' | ']' | ':' | ',' | ';' => {
                    tokens.push((Token::Mark(char), line));
                }
                char if is_of_word(char) => {
                    let mut word = String::from(char);
                    while let Some(char) = chars.next_if(|char| is_of_word(*char)) {
                        word.push(char);
                    }
                    tokens.push((Token::Word(word), line));
                }
                char => {
                    let problem = format!("unexpected {char:?}");
                    return Err(TextError { line, problem });
                }
            }
        }
        Ok(Self(tokens))
    }
}

fn is_of_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || "_-+.$/".contains(char)
}

/// Reads the rest of a string up to its quote.
fn string(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    quote: char,
) -> Result<String, String> {
    let mut bytes = Vec::new();
    loop {
        let char = chars.next().filter(|char| *char != '\n');
        let Some(char) = char else {
            return Err("a string does not end on its line".to_owned());
        };
        match char {
            char if char == quote => break,
            '\\' => bytes.extend(escaped(chars)?),
            char => bytes.extend(char.to_string().bytes()),
        }
    }
    String::from_utf8(bytes).map_err(|_| "a string is not UTF-8".to_owned())
}

/// Reads what follows a backslash.
fn escaped(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Vec<u8>, String> {
    let char = chars.next().ok_or("a string does not end on its line")?;
    let byte = match char {
        'n' => b'\n',
        't' => b'\t',
        'r' => b'\r',
        '0'..='7' => {
            let first = char.to_digit(8).unwrap_or_default();
            number(chars, first, 8, 2)
        }
        'x' | 'X' => number(chars, 0, 16, 2),
        char => return Ok(char.to_string().into_bytes()),
    };
    Ok(vec![byte])
}

/// Reads the rest of the number of a byte.
fn number(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    first: u32,
    radix: u32,
    most: usize,
) -> u8 {
    let mut number = first;
    for _ in 0..most {
        let Some(digit) = chars.peek().and_then(|char| char.to_digit(radix)) else {
            break;
        };
        chars.next();
        number = number * radix + digit;
    }
    number as u8
}

struct Parser {
    tokens: Tokens,
    next: usize,
    fields: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.0.get(self.next).map(|(token, _)| token)
    }

    /// Returns the line of the next token, or of the last one.
    fn line(&self) -> usize {
        let tokens = &self.tokens.0;
        let token = tokens.get(self.next).or(tokens.last());
        token.map_or(1, |(_, line)| *line)
    }

    fn error(&self, problem: impl Into<String>) -> TextError {
        TextError {
            line: self.line(),
            problem: problem.into(),
        }
    }

    /// Takes a mark if it is next.
    fn take(&mut self, mark: char) -> bool {
        let is_next = self.peek() == Some(&Token::Mark(mark));
        self.next += usize::from(is_next);
        is_next
    }

    /// Reads the fields up to the end of a message, or of the text.
    fn message(&mut self, end: Option<char>, depth: usize) -> Result<Vec<Field>, TextError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("messages are nested more than {MAX_DEPTH} deep")));
        }
        let mut fields = Vec::new();
        loop {
            let name = match self.peek() {
                None if end.is_none() => return Ok(fields),
                None => return Err(self.error("a message does not end")),
                Some(Token::Mark(mark)) if Some(*mark) == end => {
                    self.next += 1;
                    return Ok(fields);
                }
                Some(Token::Word(name)) => name.clone(),
                Some(token) => return Err(self.error(format!("expected a field, found {token}"))),
            };
            let line = self.line();
            self.next += 1;
            let has_colon = self.take(':');
            let mut add = |parser: &mut Self, has_colon| {
                let value = parser.value(has_colon, depth)?;
                parser.fields += 1;
                if parser.fields > MAX_FIELDS {
                    return Err(parser.error(format!("there are more than {MAX_FIELDS} fields")));
                }
                let name = name.clone();
                fields.push(Field { name, line, value });
                Ok(())
            };
            if self.take('[') {
                while !self.take(']') {
                    add(self, true)?;
                    if !self.take(',') && self.peek() != Some(&Token::Mark(']')) {
                        return Err(self.error("expected , or ] in a list"));
                    }
                }
            } else {
                add(self, has_colon)?;
            }
            if !self.take(',') {
                self.take(';');
            }
        }
    }

    /// Reads a value. Only a message may follow a name without a colon.
    fn value(&mut self, has_colon: bool, depth: usize) -> Result<Value, TextError> {
        for (begin, end) in [('{', '}'), ('<', '>')] {
            if self.take(begin) {
                return self.message(Some(end), depth + 1).map(Value::Message);
            }
        }
        let value = match self.peek() {
            Some(Token::Word(word)) if has_colon => Value::Word(word.clone()),
            Some(Token::Text(text)) if has_colon => Value::Text(text.clone()),
            Some(token) if has_colon => {
                return Err(self.error(format!("expected a value, found {token}")));
            }
            Some(token) => {
                return Err(self.error(format!("expected : or {{ after a name, found {token}")));
            }
            None => return Err(self.error("the text ends before a value")),
        };
        self.next += 1;
        Ok(value)
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Mark(mark) => write!(f, "`{mark}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    /// Writes fields as protobuf prints them.
    fn printed(fields: &[Field], into: &mut String) {
        for field in fields {
            match &field.value {
                Value::Word(word) => writeln!(into, "{}: {word}", field.name).unwrap(),
                Value::Text(text) => {
                    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
                    let text = text.replace('\n', "\\n");
                    writeln!(into, "{}: \"{text}\"", field.name).unwrap();
                }
                Value::Message(fields) => {
                    writeln!(into, "{} {{", field.name).unwrap();
                    printed(fields, into);
                    into.push_str("}\n");
                }
            }
        }
    }

    /// The fields without their lines.
    fn without_lines(fields: Vec<Field>) -> Vec<Field> {
        let fields = fields.into_iter().map(|field| Field {
            line: 0,
            value: match field.value {
                Value::Message(fields) => Value::Message(without_lines(fields)),
                value => value,
            },
            ..field
        });
        fields.collect()
    }

    fn fields() -> impl Strategy<Value = Vec<Field>> {
        let leaf = prop_oneof![
            "[A-Z0-9_.-]{1,8}".prop_map(Value::Word),
            "[ -~ä\n]{0,12}".prop_map(Value::Text),
        ];
        let value = leaf.prop_recursive(4, 24, 4, |inner| {
            let field = ("[a-z_]{1,8}", inner).prop_map(|(name, value)| Field {
                name,
                line: 0,
                value,
            });
            proptest::collection::vec(field, 0..4).prop_map(Value::Message)
        });
        let field = ("[a-z_]{1,8}", value).prop_map(|(name, value)| Field {
            name,
            line: 0,
            value,
        });
        proptest::collection::vec(field, 0..6)
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(fields in fields()) {
            let mut text = String::new();
            printed(&fields, &mut text);
            prop_assert_eq!(without_lines(parse(&text).unwrap()), fields);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z:{}<>,;#\"'\\\\ \n\\[\\]0-9]{0,60}") {
            let _ = parse(&text);
        }
    }

    fn word(name: &str, line: usize, word: &str) -> Field {
        let (name, value) = (name.to_owned(), Value::Word(word.to_owned()));
        Field { name, line, value }
    }

    #[test]
    fn lists_braces_commas_and_joined_strings_are_read() {
        let text =
            "dims: [ 3, -1 ] # sizes\ninput [ { name: 'a' \"b\" }, < dims: 1; > ]\nempty: []\n";
        let text_field = Field {
            name: "name".to_owned(),
            line: 2,
            value: Value::Text("ab".to_owned()),
        };
        let message = |fields| Field {
            name: "input".to_owned(),
            line: 2,
            value: Value::Message(fields),
        };
        let expected = vec![
            word("dims", 1, "3"),
            word("dims", 1, "-1"),
            message(vec![text_field]),
            message(vec![word("dims", 2, "1")]),
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn escapes_are_read() {
        let parsed = parse(r#"a: "\x41\102\n\"\\\303\244""#).unwrap();
        assert_eq!(parsed[0].value, Value::Text("AB\n\"\\ä".to_owned()));
    }

    #[test]
    fn errors_name_the_line() {
        let deep = "a {".repeat(40);
        for (text, expected) in [
            ("a: 1\nb: \"x", "line 2: a string does not end on its line"),
            ("a {\n b: 1", "line 2: a message does not end"),
            ("a\n1 2", "line 2: expected : or { after a name, found `1`"),
            ("a: }", "line 1: expected a value, found `}`"),
            ("}", "line 1: expected a field, found `}`"),
            ("a: [1 2]", "line 1: expected , or ] in a list"),
            ("a: @", "line 1: unexpected '@'"),
            ("a: \"\\377\"", "line 1: a string is not UTF-8"),
            (&deep, "line 1: messages are nested more than 32 deep"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }
}
