//! A block: the samples of all models and devices of one time, and what happened in it.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceId, ModelId};

use crate::{
    bytes::{Reader, put, put_text},
    sample::Sample,
};

/// The largest number of marks of a block; further ones are left out.
const MAX_MARKS: usize = 64;
/// The largest number of bytes of a mark's text; a longer one is cut.
const MAX_TEXT: usize = 200;

/// The subject of a sample.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// All models together.
    Cluster,
    /// A version of a model.
    Model(ModelId),
    /// A device.
    Device(DeviceId),
}

/// The subject of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// A plan was adopted.
    Plan,
    /// A version of a model was registered, served or removed.
    Version,
    /// A finding was raised.
    Finding,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The subject.
    pub kind: MarkKind,
    /// The model or device that it is of; none of what concerns all.
    pub series: Option<Series>,
    /// A sentence for people.
    pub text: String,
}

/// The samples of one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The begin, in milliseconds since 1970: a multiple of the length of such blocks.
    pub begin_ms: u64,
    /// The time that its samples are of, in milliseconds: less than its length where the gateway was down for a part of it.
    pub covered_ms: u64,
    /// The generation of the plan at its end; 0 before the first.
    pub generation: u64,
    /// The samples.
    pub samples: BTreeMap<Series, Sample>,
    /// The event, in words.
    pub marks: Vec<Mark>,
}

impl Series {
    const CLUSTER: u8 = 0;
    const MODEL: u8 = 1;
    const DEVICE: u8 = 2;

    pub(crate) fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let (kind, name) = match self {
            Self::Cluster => (Self::CLUSTER, String::new()),
            Self::Model(id) => (Self::MODEL, id.to_string()),
            Self::Device(id) => (Self::DEVICE, id.to_string()),
        };
        bytes.push(kind);
        put_text(bytes, &name);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let kind = reader.take(1)?[0];
        let name = reader.text()?;
        match kind {
            Self::CLUSTER => Some(Self::Cluster),
            Self::MODEL => name.parse().ok().map(Self::Model),
            Self::DEVICE => name.parse().ok().map(Self::Device),
            _ => None,
        }
    }
}

impl MarkKind {
    const ALL: [Self; 3] = [Self::Plan, Self::Version, Self::Finding];
}

impl Mark {
    /// Creates a mark, whose text is cut where it is too long.
    pub fn new(at_ms: u64, kind: MarkKind, series: Option<Series>, text: &str) -> Self {
        let end = text.floor_char_boundary(MAX_TEXT);
        let text = text[..end].to_owned();
        Self {
            at_ms,
            kind,
            series,
            text,
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.at_ms);
        let kind = MarkKind::ALL.iter().position(|kind| *kind == self.kind);
        put(bytes, kind.unwrap_or_default() as u64);
        self.series
            .as_ref()
            .unwrap_or(&Series::Cluster)
            .write(bytes);
        put_text(bytes, &self.text);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let at_ms = reader.number()?;
        let kind = usize::try_from(reader.number()?).ok()?;
        let series = Some(Series::read(reader)?).filter(|series| *series != Series::Cluster);
        Some(Self {
            at_ms,
            kind: *MarkKind::ALL.get(kind)?,
            series,
            text: reader.text()?.to_owned(),
        })
    }
}

impl Block {
    /// Adds a later block: its samples to the sums, and its marks.
    pub fn merge(&mut self, later: &Self) {
        self.covered_ms = self.covered_ms.saturating_add(later.covered_ms);
        self.generation = later.generation;
        for (series, more) in &later.samples {
            match self.samples.get_mut(series) {
                Some(sum) => sum.merge(more),
                None => {
                    self.samples.insert(series.clone(), more.clone());
                }
            }
        }
        self.marks.extend(later.marks.iter().cloned());
        self.marks.truncate(MAX_MARKS);
    }

    /// Writes the block, with what `name` writes for each series that it knows; samples of others are left out.
    pub(crate) fn write(&self, mut name: impl FnMut(&Series, &mut Vec<u8>) -> bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, self.begin_ms);
        put(&mut bytes, self.covered_ms);
        put(&mut bytes, self.generation);
        put(&mut bytes, self.marks.len().min(MAX_MARKS) as u64);
        for mark in self.marks.iter().take(MAX_MARKS) {
            mark.write(&mut bytes);
        }
        let mut body = Vec::new();
        for (series, sample) in &self.samples {
            if !name(series, &mut bytes) {
                continue;
            }
            body.clear();
            sample.write(&mut body);
            put(&mut bytes, body.len() as u64);
            bytes.extend_from_slice(&body);
        }
        bytes
    }
}

/// The beginning of a block, and the rest of its bytes: samples, each after its series and its length.
pub(crate) struct Head<'a> {
    /// The block without samples.
    pub(crate) block: Block,
    rest: Reader<'a>,
}

impl<'a> Head<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let mut block = Block {
            begin_ms: rest.number()?,
            covered_ms: rest.number()?,
            generation: rest.number()?,
            ..Block::default()
        };
        for _ in 0..rest.number()?.min(MAX_MARKS as u64) {
            block.marks.push(Mark::read(&mut rest)?);
        }
        Some(Self { block, rest })
    }

    /// Returns the next sample's series, which `name` reads, and its bytes; `None` at the end, or where the bytes are no such thing.
    pub(crate) fn next<T>(
        &mut self,
        name: impl FnOnce(&mut Reader<'a>) -> Option<T>,
    ) -> Option<(T, Reader<'a>)> {
        let series = name(&mut self.rest)?;
        let length = self.rest.number()?;
        Some((series, Reader(self.rest.take(length)?)))
    }

    /// Returns true if all of it has been read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.0.is_empty()
    }
}
