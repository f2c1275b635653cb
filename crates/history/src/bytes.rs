//! Numbers and texts as bytes. Small numbers take one byte: seven bits a byte, the lowest first.

/// Appends a number.
pub(crate) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a text with its length.
pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

/// The bytes that are left to read. Every reading returns `None` where the bytes end too soon or are no such thing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let length = usize::try_from(length).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.number()?;
        std::str::from_utf8(self.take(length)?).ok()
    }

    /// Returns a number, or zero at the end: trailing zeros are not written.
    pub(crate) fn number_or_zero(&mut self) -> Option<u64> {
        if self.0.is_empty() {
            Some(0)
        } else {
            self.number()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written_and_any_bytes_without_a_panic(
            numbers in prop::collection::vec(any::<u64>(), 0..20),
            garbage in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = Vec::new();
            for number in &numbers {
                put(&mut bytes, *number);
            }
            put_text(&mut bytes, "models");
            let mut reader = Reader(&bytes);
            for number in &numbers {
                prop_assert_eq!(reader.number(), Some(*number));
            }
            prop_assert_eq!(reader.text(), Some("models"));
            prop_assert_eq!(reader.number(), None);
            let mut reader = Reader(&garbage);
            while reader.number().is_some() {}
            Reader(&garbage).text();
        }
    }
}
