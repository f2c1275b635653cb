//! Bytes in several chunks, as a socket delivered them.
//!
//! A request body arrives in chunks, and a tensor may begin in one and end in another. Copying it into one piece would be the most
//! expensive operation of a gateway, so tensors stay where they arrived and are passed on as lists of slices.

use std::{collections::VecDeque, fmt};

use bytes::{Bytes, BytesMut};

/// A sequence of bytes in chunks. Splitting copies nothing.
#[derive(Clone, Default)]
pub struct ByteRope {
    /// The chunks. None is empty, and at least one of two neighbours has [`ByteRope::SMALL`] bytes or more.
    chunks: VecDeque<Bytes>,
    len: usize,
}

impl ByteRope {
    /// The size in bytes below which neighbouring chunks are joined when they are pushed, so that a peer that sends single bytes cannot
    /// make the list of chunks larger than the bytes in it.
    pub const SMALL: usize = 1024;

    /// Creates an empty rope.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes in all chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes at the end.
    pub fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        self.len += chunk.len();
        match self.chunks.back_mut() {
            Some(last) if last.len() < Self::SMALL && chunk.len() < Self::SMALL => {
                // A chunk that was joined before has no other owner and grows in place.
                let mut joined = std::mem::take(last)
                    .try_into_mut()
                    .unwrap_or_else(|shared| {
                        let mut copy = BytesMut::with_capacity(2 * Self::SMALL);
                        copy.extend_from_slice(&shared);
                        copy
                    });
                joined.extend_from_slice(&chunk);
                *last = joined.freeze();
            }
            _ => self.chunks.push_back(chunk),
        }
    }

    /// Adds the chunks of another rope at the end.
    pub fn append(&mut self, other: Self) {
        for chunk in other.chunks {
            self.push(chunk);
        }
    }

    /// Returns the chunks in order. None is empty.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// Returns the chunks in order. None is empty.
    pub fn into_chunks(self) -> impl ExactSizeIterator<Item = Bytes> {
        self.chunks.into_iter()
    }

    /// Returns the rope with every chunk replaced by one of equal bytes, such as one that holds something until it is dropped.
    #[must_use]
    pub fn map_chunks(mut self, mut map: impl FnMut(Bytes) -> Bytes) -> Self {
        for chunk in &mut self.chunks {
            let length = chunk.len();
            *chunk = map(std::mem::take(chunk));
            assert_eq!(chunk.len(), length, "a chunk keeps its bytes");
        }
        self
    }

    /// Removes and returns the first `len` bytes. Panics if there are fewer.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "split at {len} of {} bytes", self.len);
        let mut front = Self::new();
        while front.len < len {
            let mut chunk = self
                .chunks
                .pop_front()
                .expect("`len` bytes are left in the chunks");
            if chunk.len() > len - front.len {
                let rest = chunk.split_off(len - front.len);
                self.chunks.push_front(rest);
            }
            front.len += chunk.len();
            front.chunks.push_back(chunk);
        }
        self.len -= len;
        front
    }

    /// Returns the bytes in one piece, copied only if there is more than one chunk.
    pub fn to_bytes(&self) -> Bytes {
        match self.chunks.len() {
            0 => Bytes::new(),
            1 => self.chunks[0].clone(),
            _ => {
                let mut all = BytesMut::with_capacity(self.len);
                self.chunks
                    .iter()
                    .for_each(|chunk| all.extend_from_slice(chunk));
                all.freeze()
            }
        }
    }
}

impl From<Bytes> for ByteRope {
    fn from(chunk: Bytes) -> Self {
        Self::from_iter([chunk])
    }
}

impl From<Vec<u8>> for ByteRope {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

impl FromIterator<Bytes> for ByteRope {
    fn from_iter<I: IntoIterator<Item = Bytes>>(chunks: I) -> Self {
        let mut rope = Self::new();
        chunks.into_iter().for_each(|chunk| rope.push(chunk));
        rope
    }
}

/// Ropes are equal if their bytes are, whatever their chunks.
impl PartialEq for ByteRope {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len
            && self
                .chunks
                .iter()
                .flatten()
                .eq(other.chunks.iter().flatten())
    }
}

impl Eq for ByteRope {}

impl fmt::Debug for ByteRope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ByteRope({} bytes in {} chunks)",
            self.len,
            self.chunks.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_bytes_are_joined_and_large_chunks_are_not_copied() {
        let single: ByteRope = (0..100_000).map(|_| Bytes::from_static(b"x")).collect();
        assert_eq!(single.len(), 100_000);
        assert!(
            single.chunks().len() <= 2 * 100_000 / ByteRope::SMALL + 1,
            "{single:?}"
        );

        let large = Bytes::from(vec![1; 5000]);
        let mut rope = ByteRope::from_iter([Bytes::from_static(b"head"), large.clone()]);
        assert_eq!(rope.split_to(104).len(), 104);
        assert_eq!(rope.to_bytes().as_ptr(), large[100..].as_ptr());
    }

    proptest! {
        #[test]
        fn cutting_a_rope_keeps_every_byte(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 0..12),
            at in any::<proptest::sample::Index>(),
        ) {
            let flat = chunks.concat();
            let mut rope: ByteRope = chunks.into_iter().map(Bytes::from).collect();
            prop_assert_eq!(&rope.to_bytes()[..], &flat[..]);
            let at = at.index(flat.len() + 1);
            let head = rope.split_to(at);
            prop_assert_eq!(&head.to_bytes()[..], &flat[..at]);
            prop_assert_eq!(&rope.to_bytes()[..], &flat[at..]);
            prop_assert_eq!(head.len() + rope.len(), flat.len());
            let mut whole = head;
            whole.append(rope);
            prop_assert_eq!(whole, ByteRope::from(flat));
        }
    }
}
