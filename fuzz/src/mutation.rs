//! Mutations of inputs that need no coverage: for CI, where nothing is built for libFuzzer.

/// The largest mutated input, in bytes.
const MAX_LENGTH: usize = 1 << 14;
/// Numbers at which parsers go wrong.
const NUMBERS: [&str; 9] = [
    "0",
    "-1",
    "1e308",
    "1e-308",
    "4294967296",
    "2147483648",
    "9223372036854775808",
    "-0.0",
    "NaN",
];
/// Bytes at which parsers go wrong.
const BYTES: [u8; 10] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'[', b',', b'\n'];

/// A seeded source of mutated inputs.
///
/// Source: G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (`SplitMix64`).
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Creates a mutator. The same seed gives the same inputs.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a mutated copy of one of the inputs, which may contain a part of another one.
    pub fn mutate(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.pick(inputs).clone();
        for _ in 0..=self.below(4) {
            self.step(&mut bytes, inputs);
        }
        bytes.truncate(MAX_LENGTH);
        bytes
    }

    fn step(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        let end = at + self.below((bytes.len() - at).min(64) + 1);
        match self.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 => {
                let byte = *self.pick(&BYTES);
                bytes.insert(at, byte);
            }
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => {
                let number = self.pick(&NUMBERS).bytes();
                bytes.splice(at..end, number);
            }
            5 => bytes.truncate(at),
            _ => {
                let other = self.pick(inputs);
                let from = self.below(other.len() + 1);
                let to = from + self.below(other.len() - from + 1);
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % limit
    }
}
