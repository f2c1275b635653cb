//! The texts by which a request that ended lately is found: its id, its trace, its key, and what failed. They are in one ring of bytes.
//!
//! Texts vary in length, and records do not: a record has the place of its texts, and outlives them if ids are long.

/// The size of the ring, in bytes: 168 for each record of the log, so that ids of the largest length with traces are kept as long as these.
const RING_BYTES: usize = 24 << 20;
/// The number of texts of a request.
const TEXTS: usize = 4;
/// The largest length of a text, in bytes: the length is one byte. Longer ones are cut.
const MAX_TEXT: usize = 255;
/// The end of a text that was cut.
const CUT: &str = "…";

/// The texts of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTexts {
    /// The id that its client chose, or the gateway.
    pub(crate) id: String,
    /// The id of its trace, in hexadecimal digits; empty without a tracer.
    pub(crate) trace: String,
    /// The id of the API key that it came with; empty without one.
    pub(crate) key: String,
    /// The message of what failed; empty if nothing did.
    pub(crate) failure: String,
}

/// The place of a request's texts in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextPlace {
    /// The number of bytes that were written before.
    begin: u64,
}

/// The ring.
#[derive(Debug, Default)]
pub(super) struct TextRing {
    bytes: Vec<u8>,
    /// The number of bytes that were written, also of those that were overwritten.
    written: u64,
}

impl TextRing {
    /// Adds the texts of a request: its id, trace, key and failure. It allocates once.
    pub(super) fn add(&mut self, texts: [&str; TEXTS]) -> TextPlace {
        if self.bytes.is_empty() {
            self.bytes = vec![0; RING_BYTES];
        }
        let begin = self.written;
        for text in texts {
            let kept = if text.len() > MAX_TEXT {
                &text[..text.floor_char_boundary(MAX_TEXT - CUT.len())]
            } else {
                text
            };
            let cut = if kept.len() < text.len() { CUT } else { "" };
            self.write(&[(kept.len() + cut.len()) as u8]);
            self.write(kept.as_bytes());
            self.write(cut.as_bytes());
        }
        TextPlace { begin }
    }

    /// Returns the texts of a request, unless they were overwritten.
    pub(super) fn get(&self, TextPlace { begin }: TextPlace) -> Option<RequestTexts> {
        if self.bytes.is_empty() || self.written.saturating_sub(begin) > RING_BYTES as u64 {
            return None;
        }
        let mut at = begin;
        let [id, trace, key, failure] = std::array::from_fn::<_, TEXTS, _>(|_| {
            let length = self.byte(at);
            let text = (at + 1..=at + u64::from(length)).map(|at| self.byte(at));
            let text: Vec<u8> = text.collect();
            at += 1 + u64::from(length);
            String::from_utf8(text).unwrap_or_default()
        });
        Some(RequestTexts {
            id,
            trace,
            key,
            failure,
        })
    }

    fn byte(&self, at: u64) -> u8 {
        self.bytes[(at % RING_BYTES as u64) as usize]
    }

    fn write(&mut self, bytes: &[u8]) {
        let at = (self.written % RING_BYTES as u64) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(RING_BYTES - at));
        self.bytes[at..at + first.len()].copy_from_slice(first);
        self.bytes[..rest.len()].copy_from_slice(rest);
        self.written += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let mut ring = TextRing::default();
        let place = ring.add(["7", "", "team-a", &"ä".repeat(200)]);
        let found = ring.get(place).unwrap();
        assert_eq!(found.failure, format!("{}…", "ä".repeat(126)));
        assert_eq!((found.id.as_str(), found.key.as_str()), ("7", "team-a"));
    }

    #[test]
    fn texts_are_found_until_they_are_overwritten() {
        let mut ring = TextRing::default();
        let text = |number: usize| format!("{number:0width$}", width = 1 + number % 131);
        let places: Vec<TextPlace> = (0..800_000)
            .map(|number| ring.add([&text(number), "", "team-a", ""]))
            .collect();
        let found = |number: &usize| ring.get(places[*number]).is_some();
        let kept = places.len() - (0..places.len()).find(found).unwrap();
        let first = places.len() - kept;
        let bytes = ring.written - places[first].begin;
        assert!(
            (RING_BYTES as u64 - 200..=RING_BYTES as u64).contains(&bytes),
            "{bytes}"
        );
        for (number, place) in places.iter().enumerate().skip(first) {
            let texts = ring.get(*place).unwrap();
            assert_eq!((texts.id, texts.key.as_str()), (text(number), "team-a"));
        }
    }
}
