//! Short JSON numbers, read in one step from a few words of text, without a branch that depends on how many digits a number has.
//!
//! Nearly every number of a tensor is short: the fewest digits that restore a 32-bit float are at most nine. Reading the digits one by one
//! costs a branch that the processor mispredicts for every number, which takes longer than all the rest.
//!
//! Source: the tests of eight bytes at a time are those of D. Lemire, Quickly parsing eight digits, 2018.

use crate::number::eight_digits;

/// A number without an exponent, of at most 7 digits before the decimal point and 15 after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortNumber {
    negative: bool,
    /// The digits before the point.
    whole: u64,
    /// The digits after the point, filled up to 16 with zeros; none without a point.
    fraction: Option<u64>,
    /// The number of characters.
    len: usize,
}

/// The largest integer up to which all are exact 64-bit floats.
const MAX_EXACT: u64 = 1 << 53;

/// The text that is looked at: a sign, 8 bytes, the point, 16 bytes.
type Window = [u8; 26];

impl ShortNumber {
    /// Returns the number at the start of the text, by JSON's grammar, if it is short and the text is as long as the window. `None` means
    /// nothing.
    #[inline]
    pub(crate) fn scan(text: &[u8]) -> Option<Self> {
        let window: &Window = text.first_chunk()?;
        let negative = window[0] == b'-';
        let start = usize::from(negative);
        // One digit is the usual case, in which the place of the others need not be waited for.
        let (whole, point) = if window[start + 1] == b'.' {
            let digit = u64::from(window[start].wrapping_sub(b'0'));
            (digit, if digit < 10 { start + 1 } else { start })
        } else {
            let digits = Digits::read(window, start)?;
            let superfluous_zero = digits.count > 1 && window[start] == b'0';
            if digits.count == 8 || superfluous_zero {
                return None;
            }
            (digits.at_the_end(), start + digits.count)
        };
        if point == start {
            return None;
        }
        let (fraction, len) = if window[point] == b'.' {
            let high = Digits::read(window, point + 1)?;
            let low = Digits::read(window, point + 9)?;
            let (low_count, low_digits) = if high.count == 8 {
                (low.count, low.digits)
            } else {
                (0, 0)
            };
            let count = high.count + low_count;
            if count == 0 || count == 16 {
                return None;
            }
            let fraction = eight_digits(high.digits) * 100_000_000 + eight_digits(low_digits);
            (Some(fraction), point + 1 + count)
        } else {
            (None, point)
        };
        if matches!(window[len], b'.' | b'e' | b'E') {
            return None;
        }
        Some(Self {
            negative,
            whole,
            fraction,
            len,
        })
    }

    /// Returns the number of characters.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the value if the number is written as an integer.
    #[inline]
    pub(crate) fn integer(&self) -> Option<i64> {
        let whole = self.whole.cast_signed();
        let value = if self.negative { -whole } else { whole };
        self.fraction.is_none().then_some(value)
    }

    /// Returns the nearest 64-bit float, unless it takes more than one operation on exact operands, which rounds once.
    #[inline]
    pub(crate) fn f64(&self) -> Option<f64> {
        let value = match (self.whole, self.fraction) {
            (whole, None) => whole.cast_signed() as f64,
            (0, Some(fraction @ 0..=MAX_EXACT)) => fraction.cast_signed() as f64 / 1e16,
            _ => return None,
        };
        Some(if self.negative { -value } else { value })
    }

    /// Returns the nearest 32-bit float, unless it is next to the middle of two.
    #[inline]
    pub(crate) fn f32(&self) -> Option<f32> {
        // The fraction as a 64-bit float, the power of ten, their product and the sum each have an error of half a unit in the last
        // place: together less than three units. That can change which 32-bit float is nearest only next to the middle of two of
        // them, given by the lower 29 bits. No short number but zero is so small that a float has fewer bits.
        const BELOW: u64 = (1 << 29) - 1;
        const MIDDLE: u64 = 1 << 28;
        let fraction = self.fraction.unwrap_or_default().cast_signed() as f64;
        let value = self.whole.cast_signed() as f64 + fraction * 1e-16;
        let decided = (value.to_bits() & BELOW).abs_diff(MIDDLE) > 3;
        let value = value as f32;
        decided.then_some(if self.negative { -value } else { value })
    }
}

/// Up to eight digits.
struct Digits {
    /// The digits, one in each byte, the first in the lowest; zeros after them.
    digits: u64,
    count: usize,
}

impl Digits {
    /// Returns the digits from a place on.
    #[inline]
    fn read(window: &Window, at: usize) -> Option<Self> {
        const EVERY: u64 = 0x0101_0101_0101_0101;
        let word = u64::from_le_bytes(*window.get(at..)?.first_chunk()?);
        // Digits become 0 to 9. Adding 0x76 carries what is above 9 into the byte's highest bit, and perhaps into later bytes.
        let values = word ^ (EVERY * u64::from(b'0'));
        let others = (values.wrapping_add(EVERY * 0x76) | values) & (EVERY * 0x80);
        // The bits below the first such byte, but for the highest, which is not set in a digit.
        let first = others >> 7;
        let before = (first ^ first.wrapping_sub(1)) >> 1;
        Some(Self {
            digits: values & before,
            count: others.trailing_zeros() as usize / 8,
        })
    }

    /// Returns the number of which these are the last digits, of which there are some.
    fn at_the_end(&self) -> u64 {
        eight_digits(self.digits << (64 - 8 * self.count.clamp(1, 8)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::number::Number;

    /// The text after a number, as long as the window.
    const REST: &str = ",-0.5,1234567890,0,0.25,17]";

    fn scan(text: &str) -> Option<ShortNumber> {
        ShortNumber::scan(format!("{text}{REST}").as_bytes())
    }

    /// Compares with the reader of any number.
    fn check(text: &str) {
        let Some(short) = scan(text) else {
            return;
        };
        let list = format!("{text}{REST}");
        let number = Number::scan(&list).expect("a short number is a number");
        assert_eq!(short.len(), number.text().len(), "{text}");
        assert_eq!(short.integer().map(i128::from), number.integer(), "{text}");
        if let Some(value) = short.f64() {
            let exact: f64 = number.text().parse().unwrap();
            assert_eq!(value.to_bits(), exact.to_bits(), "{text}");
        }
        if let Some(value) = short.f32() {
            let exact: f32 = number.text().parse().unwrap();
            assert_eq!(value.to_bits(), exact.to_bits(), "{text}");
        }
    }

    #[test]
    fn numbers_with_few_digits_are_short() {
        for text in [
            "0",
            "-0",
            "0.0",
            "-0.0",
            "7",
            "255",
            "-128",
            "0.5",
            "-0.123456789",
            "1234567",
            "-1234567.123456789012345",
        ] {
            assert!(scan(text).is_some(), "{text}");
            check(text);
        }
        let (zero, half) = (scan("-0").unwrap(), scan("-0.5").unwrap());
        assert_eq!(zero.f32().map(f32::to_bits), Some((-0.0_f32).to_bits()));
        assert_eq!((half.f32(), half.f64()), (Some(-0.5), Some(-0.5)));
        assert_eq!((zero.integer(), half.integer()), (Some(0), None));
    }

    #[test]
    fn all_others_are_left_to_the_general_reader() {
        for text in [
            "",
            "-",
            "+1",
            ".5",
            "-.5",
            "1.",
            "12.",
            "1.e3",
            "1e5",
            "1.5E5",
            "1.2.3",
            "01",
            "-01",
            "00.5",
            "12345678",
            "0.1234567890123456",
            "nan",
            "\u{80}",
        ] {
            assert!(scan(text).is_none(), "{text}");
        }
        let window = size_of::<Window>();
        assert!(ShortNumber::scan(&REST.as_bytes()[REST.len() - window + 1..]).is_none());
        assert!(ShortNumber::scan(&REST.as_bytes()[1..=window]).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn a_short_number_is_the_nearest_float(text in r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,15})?") {
            prop_assert!(scan(&text).is_some(), "{}", text);
            check(&text);
        }

        #[test]
        fn the_neighbourhood_of_a_middle_rounds_correctly(bits in 0x3900_0000_u32..0x4a00_0000, off in -6_i64..=6) {
            let middle = f64::midpoint(f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
            let near = f64::from_bits(middle.to_bits().wrapping_add_signed(off));
            for places in 1..=15 {
                check(&format!("{near:.places$}"));
            }
        }

        #[test]
        fn any_text_is_read_as_by_the_general_reader(text in r"-?[0-9]{0,9}[-.0-9eE, \u{e9}\x00\x7f]{0,18}") {
            check(&text);
        }
    }
}
