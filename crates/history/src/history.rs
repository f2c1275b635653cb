//! The blocks of the last day in memory.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    block::{Block, Head, Mark, Series},
    bytes::{Reader, put},
    sample::Sample,
};

/// The length of the blocks that are added, in milliseconds.
pub const FINE_MS: u64 = 10_000;
/// The time for which these are kept.
pub const FINE_SPAN_MS: u64 = 3_600_000;
/// The length of the blocks that are kept for longer.
pub const MINUTE_MS: u64 = 60_000;
/// The time for which these are kept.
pub const SPAN_MS: u64 = 24 * 3_600_000;
/// The largest number of models and devices that are told apart. Further ones count in the sum of all only.
const MAX_SERIES: usize = 8192;

/// The last day of every model and device, within a limit of bytes.
#[derive(Clone, Debug)]
pub struct History {
    limit_bytes: usize,
    bytes: usize,
    fine: Ring,
    minutes: Ring,
    names: Names,
}

/// Blocks of one length as bytes, the oldest first.
#[derive(Clone, Debug)]
struct Ring {
    length_ms: u64,
    span_ms: u64,
    /// The begin of each block, and its bytes.
    blocks: VecDeque<(u64, Box<[u8]>)>,
}

/// The numbers by which blocks in memory name models and devices.
#[derive(Clone, Debug, Default)]
struct Names {
    numbers: BTreeMap<Series, Name>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    number: u64,
    /// The begin of the last block with it.
    last_ms: u64,
}

/// The knowledge of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The begin, in milliseconds since 1970: a multiple of the step.
    pub begin_ms: u64,
    /// The time that the sample is of, in milliseconds: less than the step where a part of it is a gap.
    pub covered_ms: u64,
    /// The generation of the plan at its end; 0 before the first.
    pub generation: u64,
    /// The sum of the samples.
    pub sample: Sample,
}

impl Ring {
    fn new(length_ms: u64, span_ms: u64) -> Self {
        Self {
            length_ms,
            span_ms,
            blocks: VecDeque::new(),
        }
    }

    fn last_ms(&self) -> Option<u64> {
        self.blocks.back().map(|(begin, _)| *begin)
    }

    /// Adds a block, and forgets what is older than the span. Returns by how many bytes it has grown, and shrunk.
    fn push(&mut self, begin_ms: u64, bytes: Vec<u8>) -> (usize, usize) {
        let grown = bytes.len();
        self.blocks.push_back((begin_ms, bytes.into_boxed_slice()));
        let mut shrunk = 0;
        let is_old = |(begin, _): &mut (u64, Box<[u8]>)| *begin + self.span_ms <= begin_ms;
        while let Some((_, bytes)) = self.blocks.pop_front_if(is_old) {
            shrunk += bytes.len();
        }
        (grown, shrunk)
    }
}

impl Names {
    /// Returns the number of a series in a block that begins then; `None` if there are too many others.
    fn number(&mut self, series: &Series, begin_ms: u64) -> Option<u64> {
        if let Some(name) = self.numbers.get_mut(series) {
            name.last_ms = begin_ms;
            return Some(name.number);
        }
        if self.numbers.len() >= MAX_SERIES {
            self.numbers
                .retain(|_, name| name.last_ms + SPAN_MS + MINUTE_MS > begin_ms);
        }
        if self.numbers.len() >= MAX_SERIES {
            return None;
        }
        // A number is never used again: old blocks may still have it.
        self.next += 1;
        let number = self.next;
        let name = Name {
            number,
            last_ms: begin_ms,
        };
        self.numbers.insert(series.clone(), name);
        Some(number)
    }
}

impl History {
    /// Creates an empty history that takes so many bytes at most.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            bytes: 0,
            fine: Ring::new(FINE_MS, FINE_SPAN_MS),
            minutes: Ring::new(MINUTE_MS, SPAN_MS),
            names: Names::default(),
        }
    }

    /// Adds a block of ten seconds. Returns the minutes that are complete by it, of which each is returned once. A block that is not later than the last one
    /// is left out.
    pub fn add(&mut self, block: &Block) -> Vec<Block> {
        if self.fine.last_ms() >= Some(block.begin_ms) {
            return Vec::new();
        }
        // Before it lets others go.
        let minutes = self.complete_minutes(block.begin_ms / MINUTE_MS * MINUTE_MS);
        self.keep(block, FINE_MS);
        minutes
    }

    /// Adds a minute that a file has. One that is not later than the last one is left out.
    pub fn restore_minute(&mut self, minute: &Block) {
        if self.minutes.last_ms() < Some(minute.begin_ms) {
            self.keep(minute, MINUTE_MS);
        }
    }

    fn keep(&mut self, block: &Block, length_ms: u64) {
        let names = &mut self.names;
        let bytes = block.write(|series, bytes| match names.number(series, block.begin_ms) {
            Some(number) => {
                put(bytes, number);
                true
            }
            None => false,
        });
        let ring = if length_ms == FINE_MS {
            &mut self.fine
        } else {
            &mut self.minutes
        };
        let (grown, shrunk) = ring.push(block.begin_ms, bytes);
        self.bytes = self.bytes + grown - shrunk;
        while self.bytes > self.limit_bytes {
            // The oldest minutes cost least to lose.
            let oldest = self.minutes.blocks.pop_front();
            let Some((_, bytes)) = oldest.or_else(|| self.fine.blocks.pop_front()) else {
                break;
            };
            self.bytes -= bytes.len();
        }
    }

    /// Makes minutes of the blocks before this time that are in none yet.
    fn complete_minutes(&mut self, before_ms: u64) -> Vec<Block> {
        let since = self.minutes.last_ms().map_or(0, |last| last + MINUTE_MS);
        let mut minutes: BTreeMap<u64, Block> = BTreeMap::new();
        for block in self.decoded(&self.fine, since, before_ms) {
            let begin_ms = block.begin_ms / MINUTE_MS * MINUTE_MS;
            let minute = minutes.entry(begin_ms).or_insert_with(|| Block {
                begin_ms,
                ..Block::default()
            });
            minute.merge(&block);
        }
        let minutes: Vec<Block> = minutes.into_values().collect();
        for minute in &minutes {
            self.keep(minute, MINUTE_MS);
        }
        minutes
    }

    /// Returns the blocks of a ring that begin in this time, whole.
    fn decoded(&self, ring: &Ring, from_ms: u64, to_ms: u64) -> Vec<Block> {
        let names = self.names.numbers.iter();
        let names: BTreeMap<u64, &Series> = names.map(|(s, name)| (name.number, s)).collect();
        let heads = ring.heads(from_ms, to_ms).map(|mut head| {
            let mut block = std::mem::take(&mut head.block);
            while let Some((number, mut bytes)) = head.next(Reader::number) {
                let Some(series) = names.get(&number) else {
                    continue;
                };
                if let Some(sample) = Sample::read(&mut bytes, series.is_device()) {
                    block.samples.insert((*series).clone(), sample);
                }
            }
            block
        });
        heads.collect()
    }

    /// Returns what is known of the series that `is_wanted` accepts, which are of one kind, for each step of this time that is not a gap. Steps below a minute
    /// are those of the last hour only.
    pub fn points(
        &self,
        is_wanted: impl Fn(&Series) -> bool,
        (from_ms, to_ms): (u64, u64),
        step_ms: u64,
    ) -> Vec<Point> {
        let step_ms = step_ms.max(1);
        let wanted = self.names.numbers.iter();
        let wanted = wanted.filter(|(series, _)| is_wanted(series));
        let wanted: BTreeMap<u64, bool> = wanted
            .map(|(series, name)| (name.number, series.is_device()))
            .collect();
        let mut points: Vec<Point> = Vec::new();
        for mut head in self.heads(from_ms, to_ms, step_ms) {
            let mut sum: Option<Sample> = None;
            while let Some((number, mut bytes)) = head.next(Reader::number) {
                let Some(is_device) = wanted.get(&number) else {
                    continue;
                };
                let sample = Sample::read(&mut bytes, *is_device);
                match (&mut sum, sample) {
                    (Some(sum), Some(more)) => sum.merge(&more),
                    (none @ None, sample) => *none = sample,
                    (Some(_), None) => {}
                }
            }
            let Some(sample) = sum else {
                continue;
            };
            let begin_ms = head.block.begin_ms / step_ms * step_ms;
            let (covered_ms, generation) = (head.block.covered_ms, head.block.generation);
            match points.last_mut().filter(|last| last.begin_ms == begin_ms) {
                Some(last) => {
                    last.covered_ms += covered_ms;
                    last.generation = generation;
                    last.sample.merge(&sample);
                }
                None => points.push(Point {
                    begin_ms,
                    covered_ms,
                    generation,
                    sample,
                }),
            }
        }
        points
    }

    /// Returns what happened in this time, the oldest first.
    pub fn marks(&self, from_ms: u64, to_ms: u64) -> Vec<Mark> {
        // An event is in the block of the time at which it was seen.
        let heads = self.heads(from_ms.saturating_sub(MINUTE_MS), u64::MAX, MINUTE_MS);
        let marks = heads.flat_map(|head| head.block.marks);
        let mut marks: Vec<Mark> = marks
            .filter(|mark| (from_ms..to_ms).contains(&mark.at_ms))
            .collect();
        marks.sort_by_key(|mark| mark.at_ms);
        marks
    }

    /// Returns the blocks that begin in a time and are fine enough for this step: for minutes those, and what is in none yet.
    fn heads(&self, from_ms: u64, to_ms: u64, step_ms: u64) -> impl Iterator<Item = Head<'_>> {
        let by_minutes = step_ms >= MINUTE_MS;
        let after = self.minutes.last_ms().map_or(0, |last| last + MINUTE_MS);
        let until = if by_minutes { to_ms } else { 0 };
        let fine_from = if by_minutes {
            from_ms.max(after)
        } else {
            from_ms
        };
        let minutes = self.minutes.heads(from_ms, until);
        minutes.chain(self.fine.heads(fine_from, to_ms))
    }

    /// Returns true if there is a sample of a series that `is_wanted` accepts.
    pub fn knows(&self, is_wanted: impl Fn(&Series) -> bool) -> bool {
        self.names.numbers.keys().any(is_wanted)
    }

    /// Returns the bytes that its blocks take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the begin of the first block.
    pub fn first_ms(&self) -> Option<u64> {
        let first = |ring: &Ring| ring.blocks.front().map(|(begin, _)| *begin);
        [first(&self.minutes), first(&self.fine)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the begin of the last block.
    pub fn last_ms(&self) -> Option<u64> {
        self.fine.last_ms().max(self.minutes.last_ms())
    }
}

impl Ring {
    fn heads(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = Head<'_>> {
        // A block that began before may reach into the time.
        let first = self
            .blocks
            .partition_point(|(begin, _)| begin + self.length_ms <= from_ms);
        let blocks = self.blocks.range(first..);
        let blocks = blocks.take_while(move |(begin, _)| *begin < to_ms);
        blocks.filter_map(|(_, bytes)| Head::read(bytes))
    }
}

#[cfg(test)]
mod tests;
