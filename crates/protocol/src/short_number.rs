//! Short JSON numbers, read in one step from a few words of text, without a branch that depends on how many digits a number has.
//!
//! Nearly every number of a tensor is short: the fewest digits that restore a 32-bit float are at most nine. Reading the digits one by one
//! costs a branch that the processor mispredicts for every number, which takes longer than all the rest. And the search for a number's
//! end looks at nothing but commas, so that the next number can begin while this one's digits are still being multiplied.

use std::array;

use wide::{i16x8, u8x16};

use crate::number::POWERS;

/// The characters of a number that are looked at: its own, and the comma after them.
type Window = [u8; WINDOW];
const WINDOW: usize = 16;

/// `LAST[n]` selects the last `n` characters of a window.
static LAST: [Window; WINDOW] = {
    let mut masks = [[0; WINDOW]; WINDOW];
    let mut n = 0;
    while n < WINDOW {
        let mut at = WINDOW - n;
        while at < WINDOW {
            masks[n][at] = 0xff;
            at += 1;
        }
        n += 1;
    }
    masks
};

/// A number of at most 15 characters without an exponent, in a list and not its last: a comma follows it directly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortNumber {
    negative: bool,
    /// The number of all digits: less than 10^15, which is an exact 64-bit float.
    digits: u64,
    /// The number of digits after the point; `None` without a point.
    places: Option<usize>,
    /// The number of characters.
    len: usize,
}

impl ShortNumber {
    /// Returns the number at a place in the text, by JSON's grammar, if it is short and not within the text's first or last bytes. `None`
    /// means nothing.
    #[inline]
    pub(crate) fn scan(text: &[u8], at: usize) -> Option<Self> {
        let window: &Window = text.get(at..)?.first_chunk()?;
        let len = find(window, b',')?;
        let negative = window[0] == b'-';
        let start = usize::from(negative);
        // One digit before the point is the usual case, in which its place need not be looked for.
        let point = match window.get(start + 1)? {
            b'.' => start + 1,
            _ => find(window, b'.').unwrap_or(WINDOW),
        };
        let (whole, places) = if point < len {
            (point - start, Some(len - point - 1))
        } else {
            (len.checked_sub(start)?, None)
        };
        let superfluous_zero = whole > 1 && window[start] == b'0';
        if whole == 0 || superfluous_zero || places == Some(0) {
            return None;
        }
        // The characters up to the number's end, and those up to one before it: there the digits before the point have the places that
        // they would have without it.
        let before: &[u8; WINDOW + 1] = text
            .get((at + len).checked_sub(WINDOW + 1)?..)?
            .first_chunk()?;
        let (to_before_end, to_end) = (before.first_chunk()?, before.last_chunk()?);
        let after_point = u8x16::new(LAST[places.unwrap_or(whole)]);
        let all = u8x16::new(LAST[whole + places.unwrap_or_default()]);
        let digits = after_point.bitselect(u8x16::new(*to_end), u8x16::new(*to_before_end));
        Some(Self {
            negative,
            digits: number((digits - u8x16::splat(b'0')) & all)?,
            places,
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
        let digits = self.digits.cast_signed();
        let value = if self.negative { -digits } else { digits };
        self.places.is_none().then_some(value)
    }

    /// Returns the nearest 64-bit float: both operands are exact, and one operation rounds once.
    #[inline]
    pub(crate) fn f64(&self) -> f64 {
        let value = self.digits.cast_signed() as f64 / POWERS[self.places.unwrap_or_default()];
        if self.negative { -value } else { value }
    }

    /// Returns the nearest 32-bit float, unless the nearest 64-bit float is the middle of two.
    #[inline]
    pub(crate) fn f32(&self) -> Option<f32> {
        // The nearest 64-bit float is on the same side of a middle as the number. Of a middle, the lower 29 bits are these. No short
        // number but zero is so small that a 32-bit float has fewer bits.
        const BELOW: u64 = (1 << 29) - 1;
        const MIDDLE: u64 = 1 << 28;
        let value = self.f64();
        (value.to_bits() & BELOW != MIDDLE).then_some(value as f32)
    }
}

/// Returns the place of a character in a window.
#[inline]
fn find(window: &Window, character: u8) -> Option<usize> {
    let found = u8x16::new(*window).simd_eq(u8x16::splat(character));
    let place = found.to_bitmask().trailing_zeros() as usize;
    (place < WINDOW).then_some(place)
}

/// Returns the number with these digits, the most significant first; `None` if one is above 9.
#[inline]
fn number(digits: u8x16) -> Option<u64> {
    let nine = u8x16::splat(9);
    if digits.max(nine) != nine {
        return None;
    }
    let digits = digits.to_array();
    // Two digits in each element, the first in the lower byte.
    let twos: [i16; 8] = array::from_fn(|i| i16::from_le_bytes([digits[2 * i], digits[2 * i + 1]]));
    let twos = i16x8::new(twos);
    let hundreds: i16x8 = (twos & i16x8::splat(0xff)) * i16x8::splat(10) + (twos >> 8);
    let ten_thousands = hundreds.dot(i16x8::new([100, 1, 100, 1, 100, 1, 100, 1]));
    let [a, b, c, d] = ten_thousands
        .to_array()
        .map(|part| u64::from(part.cast_unsigned()));
    Some((a * 10_000 + b) * 100_000_000 + c * 10_000 + d)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::number::Number;

    /// The text around a number, each as long as what is looked at.
    const BEFORE: &str = "{\"data\": [0.12345,";
    const AFTER: &str = ",-0.5,1234567890]";

    fn scan(text: &str) -> Option<ShortNumber> {
        ShortNumber::scan(format!("{BEFORE}{text}{AFTER}").as_bytes(), BEFORE.len())
    }

    /// Compares with the reader of any number.
    fn check(text: &str) {
        let Some(short) = scan(text) else {
            return;
        };
        let list = format!("{text}{AFTER}");
        let number = Number::scan(&list).expect("a short number is a number");
        assert_eq!(short.len(), number.text().len(), "{text}");
        assert_eq!(short.integer().map(i128::from), number.integer(), "{text}");
        let exact: f64 = number.text().parse().unwrap();
        assert_eq!(short.f64().to_bits(), exact.to_bits(), "{text}");
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
            "-1234567.123456",
        ] {
            assert!(scan(text).is_some(), "{text}");
            check(text);
        }
        let (zero, half) = (scan("-0").unwrap(), scan("-0.5").unwrap());
        assert_eq!(zero.f32().map(f32::to_bits), Some((-0.0_f32).to_bits()));
        assert_eq!((half.f32(), half.f64()), (Some(-0.5), -0.5));
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
            "1 ",
            "1]",
            "1234567890123456",
            "0.12345678901234",
            "nan",
            "\u{80}",
        ] {
            assert!(scan(text).is_none(), "{text}");
        }
        let text = format!("{BEFORE}7{AFTER}");
        let scan = |text: &str, at| ShortNumber::scan(text.as_bytes(), at);
        assert!(scan(&text, BEFORE.len()).is_some());
        assert!(scan(&text[BEFORE.len() - WINDOW + 1..], WINDOW - 1).is_none());
        assert!(scan(&text[..BEFORE.len() + WINDOW - 1], BEFORE.len()).is_none());
        assert!(scan(&text, text.len() + 1).is_none());
    }

    #[test]
    fn the_middle_of_two_floats_is_left_to_the_general_reader() {
        for text in ["16777217", "-16777219", "8388608.5", "4194304.25"] {
            assert!(scan(text).unwrap().f32().is_none(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn a_short_number_is_the_nearest_float(text in r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,6})?") {
            prop_assert!(scan(&text).is_some(), "{}", text);
            check(&text);
        }

        #[test]
        fn the_neighbourhood_of_a_middle_rounds_correctly(bits in 0x3900_0000_u32..0x4a00_0000, off in -6_i64..=6) {
            let middle = f64::midpoint(f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
            let near = f64::from_bits(middle.to_bits().wrapping_add_signed(off));
            for places in 1..=13 {
                check(&format!("{near:.places$}"));
            }
        }

        #[test]
        fn any_text_is_read_as_by_the_general_reader(text in r"-?[0-9]{0,9}[-.0-9eE, \u{e9}\x00\x7f]{0,12}") {
            check(&text);
        }
    }
}
