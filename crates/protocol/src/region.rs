//! Tensors in shared memory: the parameters of Triton's system shared memory extension, and the seam to what keeps the regions.
//!
//! A tensor of a message may lie in a region that the client registered, instead of in the message. A reader of messages gets the bytes
//! of inputs through [`Regions`]; outputs are written by whoever answers.

use bytes::Bytes;

use crate::{TensorError, json::Cursor};

/// A part of a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRange {
    /// The region's name.
    pub region: String,
    /// The first byte, from the beginning of the region.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The parameter with the region's name.
const REGION: &str = "parameters.shared_memory_region";
/// The parameter with the first byte; 0 if it is missing.
const OFFSET: &str = "parameters.shared_memory_offset";
/// The parameter with the number of bytes.
const BYTES: &str = "parameters.shared_memory_byte_size";

/// The registered regions, as far as a message may read them.
pub trait Regions {
    /// Returns a copy of a range.
    ///
    /// # Errors
    /// The reason why it cannot be read, for the client.
    fn read(&mut self, range: &RegionRange) -> Result<Bytes, String>;
}

/// The regions of a reader that has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRegions;

impl Regions for NoRegions {
    fn read(&mut self, _: &RegionRange) -> Result<Bytes, String> {
        Err("shared memory is not supported here".to_owned())
    }
}

/// The parameters of a range that have been read so far.
#[derive(Default)]
pub(crate) struct RangeParameters {
    region: Option<String>,
    offset: Option<u64>,
    bytes: Option<u64>,
}

impl RangeParameters {
    /// Reads the value of a parameter if it is one of a range, and returns false if it is not. A name has at most `name_bytes` bytes.
    pub(crate) fn read(
        &mut self,
        cursor: &mut Cursor<'_>,
        key: &str,
        name_bytes: usize,
    ) -> Result<bool, TensorError> {
        match key {
            "shared_memory_region" => {
                let name = cursor
                    .string()
                    .map_err(|e| problem(REGION, e.to_string()))?;
                if name.len() > name_bytes {
                    let long = format!("{} bytes are over the limit of {name_bytes}", name.len());
                    return Err(problem(REGION, long));
                }
                set_once(&mut self.region, REGION, name.into_owned())?;
            }
            "shared_memory_offset" => {
                set_once(&mut self.offset, OFFSET, read_number(cursor, OFFSET)?)?;
            }
            "shared_memory_byte_size" => {
                set_once(&mut self.bytes, BYTES, read_number(cursor, BYTES)?)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the range, if any of its parameters was given.
    pub(crate) fn finish(self) -> Result<Option<RegionRange>, TensorError> {
        match (self.region, self.offset, self.bytes) {
            (None, None, None) => Ok(None),
            (Some(region), offset, Some(bytes)) => Ok(Some(RegionRange {
                region,
                offset: offset.unwrap_or_default(),
                bytes,
            })),
            (None, ..) => Err(TensorError::MissingField(REGION)),
            (Some(_), _, None) => Err(TensorError::MissingField(BYTES)),
        }
    }
}

fn read_number(cursor: &mut Cursor<'_>, field: &'static str) -> Result<u64, TensorError> {
    cursor.read().map_err(|e| problem(field, e.to_string()))
}

fn set_once<T>(slot: &mut Option<T>, field: &'static str, value: T) -> Result<(), TensorError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(problem(field, "given twice".to_owned())),
    }
}

fn problem(field: &'static str, problem: String) -> TensorError {
    TensorError::Field { field, problem }
}
