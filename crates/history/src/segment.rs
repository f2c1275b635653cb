//! The files in which blocks are kept over a restart.
//!
//! A file has blocks of one length: a head of 16 bytes, [`MAGIC`], [`VERSION`] and the length in milliseconds, then blocks as they came. Each has its
//! length and its CRC-32 before it, four bytes each, the lowest first, and names its models and devices itself. Files are only ever appended to, and
//! never after another start of the gateway: what a crash tore is the end of a file, which is left out.

use crate::{
    block::{Block, Head, Series},
    sample::Sample,
};

/// The first bytes of a file.
pub const MAGIC: [u8; 8] = *b"PHHISTRY";
/// The version of the format. Files of another one are not read.
pub const VERSION: u32 = 1;
/// The length of a file's head.
pub const HEAD: usize = 16;
/// The largest number of bytes of a block.
const MAX_BLOCK: usize = 16 << 20;

/// Returns the head of a file with blocks of this length.
pub fn head(length_ms: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..].copy_from_slice(&length_ms.to_le_bytes());
    head
}

/// Returns a block as it stands in a file; `None` if it is too large for one.
pub fn frame(block: &Block) -> Option<Vec<u8>> {
    let payload = block.write(|series, bytes| {
        series.write(bytes);
        true
    });
    let length = u32::try_from(payload.len()).ok()?;
    if payload.len() > MAX_BLOCK {
        return None;
    }
    let mut frame = Vec::with_capacity(payload.len() + 8);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    frame.extend_from_slice(&payload);
    Some(frame)
}

/// The blocks of a file, as far as they are whole.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    rest: &'a [u8],
}

/// Returns the blocks of a file, if it has blocks of this length.
pub fn blocks(file: &[u8], length_ms: u32) -> Blocks<'_> {
    let rest = file.strip_prefix(&head(length_ms)).unwrap_or_default();
    Blocks { rest }
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let (length, rest) = self.rest.split_first_chunk().map(|(n, r)| (number(n), r))?;
        let (crc, rest) = rest.split_first_chunk().map(|(n, r)| (number(n), r))?;
        let (payload, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        let block = (crc32fast::hash(payload) == crc).then(|| read(payload));
        // After what is torn nothing is where it should be.
        self.rest = if block.is_some() { rest } else { &[] };
        block?
    }
}

fn read(payload: &[u8]) -> Option<Block> {
    let mut head = Head::read(payload)?;
    let mut samples = Vec::new();
    while !head.is_at_end() {
        let (series, mut bytes) = head.next(Series::read)?;
        let sample = Sample::read(&mut bytes, series.is_device())?;
        samples.push((series, sample));
    }
    let mut block = head.block;
    block.samples.extend(samples);
    Some(block)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        block::{Mark, MarkKind},
        history::FINE_MS,
        sample::{DeviceSample, ModelSample},
    };

    fn block(number: u64) -> Block {
        let model = Series::Model("resnet:3".parse().unwrap());
        let mut sample = ModelSample {
            offered: number,
            in_time: number / 2,
            ..ModelSample::default()
        };
        sample
            .latencies
            .add(std::time::Duration::from_millis(number + 1), number / 2);
        let device = DeviceSample {
            memory_kib: 7,
            ..DeviceSample::default()
        };
        Block {
            begin_ms: number * FINE_MS,
            covered_ms: FINE_MS,
            generation: 4,
            samples: [
                (Series::Cluster, Sample::Model(ModelSample::default())),
                (model.clone(), Sample::Model(sample)),
                (
                    Series::Device("n/cpu0".parse().unwrap()),
                    Sample::Device(device),
                ),
            ]
            .into(),
            marks: vec![Mark::new(
                5,
                MarkKind::Version,
                Some(model),
                "resnet:3 serves",
            )],
        }
    }

    fn file(count: u64) -> (Vec<u8>, Vec<Block>, Vec<usize>) {
        let all: Vec<Block> = (0..count).map(block).collect();
        let mut bytes = head(FINE_MS as u32).to_vec();
        let mut ends = Vec::new();
        for block in &all {
            bytes.extend(frame(block).unwrap());
            ends.push(bytes.len());
        }
        (bytes, all, ends)
    }

    #[test]
    fn a_file_has_the_blocks_that_were_written_and_one_of_another_kind_none() {
        let (bytes, all, _) = file(5);
        let read: Vec<Block> = blocks(&bytes, FINE_MS as u32).collect();
        assert_eq!(read, all);
        assert_eq!(blocks(&bytes, 60_000).count(), 0);
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(blocks(&newer, FINE_MS as u32).count(), 0);
    }

    proptest! {
        #[test]
        fn what_a_crash_tore_costs_the_blocks_from_there_on_and_no_more(cut in 0.0..1.0, flip in any::<u8>()) {
            let (mut bytes, all, ends) = file(6);
            let at = (cut * bytes.len() as f64) as usize;
            let whole = ends.iter().filter(|end| **end <= at).count();
            let read: Vec<Block> = blocks(&bytes[..at], FINE_MS as u32).collect();
            prop_assert_eq!(&read, &all[..whole]);
            if at < bytes.len() && flip != 0 && at >= HEAD {
                bytes[at] ^= flip;
                let read: Vec<Block> = blocks(&bytes, FINE_MS as u32).collect();
                prop_assert_eq!(&read, &all[..whole]);
            }
        }
    }
}
