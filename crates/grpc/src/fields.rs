//! The fields of a message of Protocol Buffers, without what they mean.

/// A field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    /// A number in as many bytes as it needs.
    Varint,
    /// A number of four or eight bytes.
    Fixed,
    /// Bytes, a text, a message, or a packed list.
    Bytes(&'a [u8]),
}

/// The reason why the next field cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldError {
    /// The bytes end within the field.
    CutOff,
    /// These bytes are no field.
    Malformed,
}

/// The fields of a message in their order, by their numbers. Ends after the first error.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    failed: bool,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self {
            rest: message,
            failed: false,
        }
    }

    /// Returns the number of bytes that have not been read.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    fn read(&mut self) -> Result<(u32, Field<'a>), FieldError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| FieldError::Malformed)?;
        if number == 0 {
            return Err(FieldError::Malformed);
        }
        let field = match tag & 7 {
            0 => {
                self.varint()?;
                Field::Varint
            }
            1 => {
                self.take(8)?;
                Field::Fixed
            }
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Field::Fixed
            }
            _ => return Err(FieldError::Malformed),
        };
        Ok((number, field))
    }

    fn varint(&mut self) -> Result<u64, FieldError> {
        let mut value = 0;
        for index in 0..10 {
            let (byte, rest) = self.rest.split_first().ok_or(FieldError::CutOff)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FieldError::Malformed)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], FieldError> {
        let length = usize::try_from(length).map_err(|_| FieldError::CutOff)?;
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(FieldError::CutOff)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), FieldError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        self.failed = field.is_err();
        Some(field)
    }
}
