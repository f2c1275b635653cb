//! A parser of server-sent events (`text/event-stream`).
//!
//! Source: WHATWG HTML, section 9.2.6, "Interpreting an event stream". The bytes may come in pieces of any size.

/// The largest event, in bytes: a snapshot of the largest cluster is far below it.
const EVENT_LIMIT: usize = 256 << 20;

/// An event of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSentEvent {
    /// The id, if the event sets one.
    pub(crate) id: Option<String>,
    /// The name; `message` if the event has none.
    pub(crate) name: String,
    /// The lines of data, joined by line feeds.
    pub(crate) data: String,
}

/// The reason why bytes are not a stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseError {
    /// The bytes are not UTF-8.
    #[error("the stream is not UTF-8")]
    NotUtf8,
    /// An event is too large.
    #[error("an event is over the limit of {EVENT_LIMIT} bytes")]
    TooLarge,
}

/// The state between two pieces.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The bytes of the line that has begun.
    line: Vec<u8>,
    /// True if the last byte was a carriage return: a line feed after it ends no further line.
    after_return: bool,
    /// True once a line has ended: only the first may begin with a byte order mark.
    begun: bool,
    id: Option<String>,
    name: String,
    data: String,
}

impl Parser {
    /// Adds a piece, and calls `found` with each event that it completes.
    pub(crate) fn feed(
        &mut self,
        piece: &[u8],
        mut found: impl FnMut(ServerSentEvent),
    ) -> Result<(), ParseError> {
        let mut rest = piece;
        while let Some(&byte) = rest.first() {
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &rest[..end.unwrap_or(rest.len())];
            if self.line.len() + self.data.len() + part.len() > EVENT_LIMIT {
                return Err(ParseError::TooLarge);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            let line = std::str::from_utf8(&line).map_err(|_| ParseError::NotUtf8)?;
            let line = if std::mem::replace(&mut self.begun, true) {
                line
            } else {
                line.strip_prefix('\u{feff}').unwrap_or(line)
            };
            if let Some(event) = self.line(line) {
                found(event);
            }
        }
        Ok(())
    }

    /// Takes a line. Returns the event that it completes.
    fn line(&mut self, line: &str) -> Option<ServerSentEvent> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let mut data = std::mem::take(&mut self.data);
            let id = self.id.take();
            // The last line feed was added by the last line of data; without one there is no event.
            data.pop()?;
            return Some(ServerSentEvent {
                id,
                name: if name.is_empty() {
                    "message".to_owned()
                } else {
                    name
                },
                data,
            });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            // Comments, `retry` and fields of later versions.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<ServerSentEvent> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, |event| events.push(event)).unwrap();
        }
        events
    }

    fn event(id: Option<&str>, name: &str, data: &str) -> ServerSentEvent {
        ServerSentEvent {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            data: data.to_owned(),
        }
    }

    const STREAM: &str = "\u{feff}retry: 1000\n\n: a comment\nid: 5\nevent: model\ndata: {\"a\": \"é\"}\n\ndata:one\r\ndata: two\r\n\r\n\
        event: empty\n\nid: 6\rdata\rdata:  x\r\rdata: not ended";

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let expected = [
            event(Some("5"), "model", "{\"a\": \"é\"}"),
            event(None, "message", "one\ntwo"),
            event(Some("6"), "message", "\n x"),
        ];
        let bytes = STREAM.as_bytes();
        assert_eq!(parse(&[bytes]), expected);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(parse(&single), expected);
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(parse(&[first, second]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let mut parser = Parser::default();
        let fed = parser.feed(b"data: \xff\n\n", |event| panic!("{event:?}"));
        assert_eq!(fed, Err(ParseError::NotUtf8));
    }
}
