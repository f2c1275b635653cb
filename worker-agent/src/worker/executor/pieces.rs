//! The pieces of inputs that lie in ranges of a gateway's memory.
//!
//! The ranges have the bytes of all inputs one after the other. Neither do they begin and end with the inputs, nor with the chunks in which the
//! memory may be registered with a device.

use packhorse_wire::ByteRange;

/// Returns the pieces of each input, of which none crosses a multiple of `chunk`. The ranges end within the memory and have at least as many
/// bytes as the inputs.
pub(crate) fn pieces(
    ranges: &[ByteRange],
    lengths: impl IntoIterator<Item = u64>,
    chunk: u64,
) -> Vec<Vec<ByteRange>> {
    let mut ranges = ranges.iter().copied().filter(|range| range.length > 0);
    let mut rest = ByteRange {
        offset: 0,
        length: 0,
    };
    let pieces_of = |mut missing: u64| {
        let mut pieces = Vec::new();
        while missing > 0 {
            if rest.length == 0 {
                rest = ranges.next().expect("the decoder compares the lengths");
            }
            let offset = rest.offset;
            let length = missing.min(rest.length).min(chunk - offset % chunk);
            pieces.push(ByteRange { offset, length });
            rest.offset += length;
            rest.length -= length;
            missing -= length;
        }
        pieces
    };
    lengths.into_iter().map(pieces_of).collect()
}

#[cfg(test)]
mod tests {
    use std::iter;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn a_piece_ends_with_its_range_its_input_or_its_chunk() {
        let ranges = [range(95, 10), range(0, 0), range(10, 20)];
        let expected = [
            vec![range(95, 5), range(100, 3)],
            vec![],
            vec![range(103, 2), range(10, 20)],
        ];
        assert_eq!(pieces(&ranges, [8, 0, 22], 100), expected);
        let unsplit = [
            vec![range(95, 8)],
            vec![],
            vec![range(103, 2), range(10, 20)],
        ];
        assert_eq!(pieces(&ranges, [8, 0, 22], u64::MAX), unsplit);
        assert!(pieces(&[], [], 100).is_empty());
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_of_the_ranges_in_order(
            ranges in vec((0_u64..1000, 0_u64..100), 0..20),
            cuts in vec(any::<prop::sample::Index>(), 0..5),
            chunk in 1_u64..300,
        ) {
            let ranges: Vec<ByteRange> = ranges.into_iter().map(|(offset, length)| range(offset, length)).collect();
            let bytes = |range: &ByteRange| range.offset..range.offset + range.length;
            let all: Vec<u64> = ranges.iter().flat_map(bytes).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len() + 1)).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([all.len()]);
            let starts = iter::once(0).chain(cuts.iter().copied());
            let lengths: Vec<usize> = starts.zip(ends).map(|(start, end)| end - start).collect();

            let inputs = pieces(&ranges, lengths.iter().map(|length| *length as u64), chunk);
            for piece in inputs.iter().flatten() {
                prop_assert!(piece.length > 0);
                prop_assert_eq!(piece.offset / chunk, (piece.offset + piece.length - 1) / chunk);
            }
            let found: Vec<Vec<u64>> = inputs.iter().map(|pieces| pieces.iter().flat_map(bytes).collect()).collect();
            prop_assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
            prop_assert_eq!(found.concat(), all);
            // No more pieces than the boundaries require.
            let split = |range: &ByteRange| (range.offset + range.length) / chunk - range.offset / chunk + 1;
            let most = ranges.iter().map(split).sum::<u64>() + cuts.len() as u64;
            prop_assert!(inputs.iter().flatten().count() as u64 <= most);
        }
    }
}
