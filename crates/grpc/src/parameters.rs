//! The parameters of requests and tensors.

use std::collections::BTreeMap;

use packhorse_protocol::{Limits, MessageError, RegionRange};

use crate::messages::inference::{InferParameter, infer_parameter::ParameterChoice};

/// The parameter with the name of a region of shared memory.
pub(crate) const REGION: &str = "shared_memory_region";
/// The parameter with the first byte of a tensor in its region.
pub(crate) const OFFSET: &str = "shared_memory_offset";
/// The parameter with the number of bytes of a tensor in its region.
pub(crate) const BYTES: &str = "shared_memory_byte_size";

/// Parameters, and the place in the request where they stand.
pub(crate) struct Parameters<'a> {
    of: &'a BTreeMap<String, InferParameter>,
    place: &'a str,
}

impl<'a> Parameters<'a> {
    pub(crate) fn new(of: &'a BTreeMap<String, InferParameter>, place: &'a str) -> Self {
        Self { of, place }
    }

    fn choice(&self, key: &str) -> Option<&'a ParameterChoice> {
        self.of.get(key)?.parameter_choice.as_ref()
    }

    pub(crate) fn error(&self, key: &str, problem: &str) -> MessageError {
        MessageError::Field {
            field: format!("{}parameters.{key}", self.place),
            problem: problem.to_owned(),
        }
    }

    /// Returns a number that is not negative.
    pub(crate) fn unsigned(&self, key: &str) -> Result<Option<u64>, MessageError> {
        let Some(choice) = self.choice(key) else {
            return Ok(None);
        };
        let number = match choice {
            ParameterChoice::Uint64Param(number) => Some(*number),
            ParameterChoice::Int64Param(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let wrong = || self.error(key, "expected an int64_param or uint64_param of at least 0");
        number.map(Some).ok_or_else(wrong)
    }

    /// Returns true if a flag is set.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, MessageError> {
        match self.choice(key) {
            None => Ok(false),
            Some(ParameterChoice::BoolParam(flag)) => Ok(*flag),
            Some(_) => Err(self.error(key, "expected a bool_param")),
        }
    }

    /// Refuses parameters whose key has this beginning, unless they have the value that says nothing.
    pub(crate) fn refuse(&self, beginning: &str, problem: &str) -> Result<(), MessageError> {
        let says_nothing = |parameter: &InferParameter| match &parameter.parameter_choice {
            None => true,
            Some(ParameterChoice::BoolParam(flag)) => !flag,
            Some(ParameterChoice::Int64Param(number)) => *number == 0,
            Some(ParameterChoice::Uint64Param(number)) => *number == 0,
            Some(ParameterChoice::StringParam(text)) => text.is_empty(),
            Some(ParameterChoice::DoubleParam(_)) => false,
        };
        let mut refused = self
            .of
            .iter()
            .filter(|(key, parameter)| key.starts_with(beginning) && !says_nothing(parameter));
        match refused.next() {
            Some((key, _)) => Err(self.error(key, problem)),
            None => Ok(()),
        }
    }

    /// Returns the place in shared memory, if one is named.
    pub(crate) fn range(&self, limits: &Limits) -> Result<Option<RegionRange>, MessageError> {
        let region = match self.choice(REGION) {
            None => None,
            Some(ParameterChoice::StringParam(name)) if name.len() <= limits.name_bytes => {
                Some(name.clone())
            }
            Some(ParameterChoice::StringParam(name)) => {
                let (length, limit) = (name.len(), limits.name_bytes);
                let long = format!("{length} bytes are over the limit of {limit}");
                return Err(self.error(REGION, &long));
            }
            Some(_) => return Err(self.error(REGION, "expected a string_param")),
        };
        match (region, self.unsigned(OFFSET)?, self.unsigned(BYTES)?) {
            (None, None, None) => Ok(None),
            (Some(region), offset, Some(bytes)) => Ok(Some(RegionRange {
                region,
                offset: offset.unwrap_or_default(),
                bytes,
            })),
            (None, ..) => Err(self.error(REGION, "missing")),
            (Some(_), _, None) => Err(self.error(BYTES, "missing")),
        }
    }
}
