//! Short JSON numbers, read in one step from a few words of text, without a branch that depends on how many digits a number has.
//!
//! Nearly every number of a tensor is short: the fewest digits that restore a 32-bit float are at most nine, and where a client has made
//! it a 64-bit float, as Python does, there are up to 17. Reading the digits one by one costs a branch that the processor mispredicts for
//! every number, which takes longer than all the rest. And the search for a number's end looks at nothing but commas, so that the next
//! number can begin while this one's digits are still being multiplied.

use std::array;

use wide::{i16x8, u8x16};

use crate::number::{POWERS, TENS};

/// The most digits, of which every number has 63 bits.
const MAX_DIGITS: usize = 18;

/// The characters that are looked at in one step.
type Window = [u8; WINDOW];
const WINDOW: usize = 16;

/// `LAST[n]` selects the last `n` characters of a window.
static LAST: [Window; WINDOW + 1] = {
    let mut masks = [[0; WINDOW]; WINDOW + 1];
    let mut n = 0;
    while n <= WINDOW {
        let mut at = WINDOW - n;
        while at < WINDOW {
            masks[n][at] = 0xff;
            at += 1;
        }
        n += 1;
    }
    masks
};

/// A number of at most 18 digits without an exponent, in a list and not its last: a comma follows it directly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortNumber {
    negative: bool,
    /// All digits, as one number: at most 18 of them, not counting a zero in front.
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
        Self::read(text, at, window, len, Digits::last)
    }

    /// Does the same for a number that is longer than the window.
    #[inline]
    pub(crate) fn scan_long(text: &[u8], at: usize) -> Option<Self> {
        let window: &Window = text.get(at..)?.first_chunk()?;
        let len = WINDOW + find(text.get(at + WINDOW..)?.first_chunk()?, b',')?;
        Self::read(text, at, window, len, Digits::all)
    }

    /// Returns the number with this many characters.
    #[inline]
    fn read(
        text: &[u8],
        at: usize,
        window: &Window,
        len: usize,
        number: impl FnOnce(&Digits, &[u8]) -> Option<u64>,
    ) -> Option<Self> {
        let negative = window[0] == b'-';
        let start = usize::from(negative);
        let end = at + len;
        // One digit before the point is the usual case, in which its place is known, and the digits after it are a number.
        if window[start + 1] == b'.' {
            let places = len.checked_sub(start + 2).filter(|places| *places > 0)?;
            let fraction = Digits {
                count: places,
                after_point: places,
                end,
            };
            let whole = digit(window[start])? * TENS.get(places)?;
            let digits = whole.checked_add(number(&fraction, text)?)?;
            return (digits < TENS[MAX_DIGITS]).then_some(Self {
                negative,
                digits,
                places: Some(places),
                len,
            });
        }
        let point = find(window, b'.').unwrap_or(len);
        let (whole, places) = if point < len {
            (point - start, Some(len - point - 1))
        } else {
            (len.checked_sub(start)?, None)
        };
        let superfluous_zero = whole > 1 && window[start] == b'0';
        if whole == 0 || superfluous_zero || places == Some(0) {
            return None;
        }
        let digits = Digits {
            count: whole + places.unwrap_or_default(),
            // Without a point, all digits are where those after one are.
            after_point: places.unwrap_or(whole),
            end,
        };
        Some(Self {
            negative,
            digits: number(&digits, text)?,
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

    /// Returns the nearest 64-bit float, if both operands of the division are exact, which then rounds once.
    #[inline]
    pub(crate) fn f64(&self) -> Option<f64> {
        (self.digits <= 1 << 53).then(|| self.approximate())
    }

    /// Returns the nearest 32-bit float, unless it is next to the middle of two.
    #[inline]
    pub(crate) fn f32(&self) -> Option<f32> {
        // Conversion and division each have an error of half a unit in the last place: together less than three units. That can change
        // which 32-bit float is nearest only next to the middle of two of them, given by the lower 29 bits. No short number but zero is
        // so small that a 32-bit float has fewer bits.
        const BELOW: u64 = (1 << 29) - 1;
        const MIDDLE: u64 = 1 << 28;
        let value = self.approximate();
        let decided = (value.to_bits() & BELOW).abs_diff(MIDDLE) > 3;
        decided.then_some(value as f32)
    }

    #[inline]
    fn approximate(&self) -> f64 {
        let value = self.digits.cast_signed() as f64 / POWERS[self.places.unwrap_or_default()];
        if self.negative { -value } else { value }
    }
}

/// Returns the value of a digit.
#[inline]
fn digit(character: u8) -> Option<u64> {
    let value = character.wrapping_sub(b'0');
    (value <= 9).then_some(u64::from(value))
}

/// Digits in a text, perhaps with a point among them.
struct Digits {
    count: usize,
    /// The number of digits after the point.
    after_point: usize,
    /// The place after the last.
    end: usize,
}

impl Digits {
    /// Returns their number; `None` if there are too many, if the text does not begin early enough, or if one is no digit.
    fn all(&self, text: &[u8]) -> Option<u64> {
        if self.count <= WINDOW {
            return self.last(text);
        }
        // The zero before the point is one, too.
        if self.count > MAX_DIGITS + 1 {
            return None;
        }
        let first = Self {
            count: self.count - WINDOW,
            after_point: self.after_point.saturating_sub(WINDOW),
            end: self.end.checked_sub(WINDOW)?,
        };
        let last = Self {
            count: WINDOW,
            after_point: self.after_point.min(WINDOW),
            end: self.end,
        };
        let number = first.last(text)? * TENS[WINDOW] + last.last(text)?;
        (number < TENS[MAX_DIGITS]).then_some(number)
    }

    /// Returns the number of those digits of which there are no more than a window has.
    #[inline]
    fn last(&self, text: &[u8]) -> Option<u64> {
        // The characters up to the last digit, and those up to one before it: there the digits before the point have the places that
        // they would have without it.
        let before: &[u8; WINDOW + 1] = text
            .get(self.end.checked_sub(WINDOW + 1)?..)?
            .first_chunk()?;
        let (to_before_end, to_end) = (before.first_chunk()?, before.last_chunk()?);
        let digits = u8x16::new(LAST[self.after_point])
            .bitselect(u8x16::new(*to_end), u8x16::new(*to_before_end));
        sixteen_digits((digits - u8x16::splat(b'0')) & u8x16::new(LAST[self.count]))
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
fn sixteen_digits(digits: u8x16) -> Option<u64> {
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
    let [a, b, c, d] = ten_thousands.to_array().map(|part| part as i16);
    let [high, low, ..] = i16x8::new([a, b, c, d, 0, 0, 0, 0])
        .dot(i16x8::new([10_000, 1, 10_000, 1, 0, 0, 0, 0]))
        .to_array()
        .map(|part| u64::from(part.cast_unsigned()));
    Some(high * TENS[8] + low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::number::Number;

    /// The text around a number, each as long as what is looked at.
    const BEFORE: &str = "{\"inputs\": [{\"data\": [0.12345678,";
    const AFTER: &str = ",-0.5,1234567890,0,0.25,17.5,0.125]";

    type Scan = fn(&[u8], usize) -> Option<ShortNumber>;

    fn scan(text: &str) -> Option<ShortNumber> {
        let (text, at) = (format!("{BEFORE}{text}{AFTER}"), BEFORE.len());
        let text = text.as_bytes();
        let short = ShortNumber::scan(text, at);
        let long = ShortNumber::scan_long(text, at);
        assert!(short.is_none() || long.is_none());
        short.or(long)
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
            "-1234567.123456",
            "1234567890123456",
            "123456789012345678",
            "-12.3456789012345678",
            "0.3745401203632355",
            "0.000456789012345678",
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
            "1 ",
            "1]",
            "1234567890123456789",
            "0.1234567890123456789",
            "1.123456789012345678",
            "123456789012345.e12",
            "1234567890123456.",
            "0123456789012345",
            "12345678901234567 ",
            "1234567890.1234.67",
            "nan",
            "\u{80}",
        ] {
            assert!(scan(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_number_near_the_beginning_or_the_end_of_the_text_is_left_to_the_general_reader() {
        let [short, long]: [Scan; 2] = [ShortNumber::scan, ShortNumber::scan_long];
        for (scan, number, windows) in [(short, "7", 1), (long, "0.12345678901234567", 2)] {
            let text = format!("{BEFORE}{number}{AFTER}");
            let (bytes, at) = (text.as_bytes(), BEFORE.len());
            assert!(scan(bytes, at).is_some());
            // What is before the number's end, and from its beginning on, must be so long.
            let first = at + number.len() - windows * WINDOW;
            assert!(scan(&bytes[first - 1..], at - (first - 1)).is_some());
            assert!(scan(&bytes[first..], at - first).is_none());
            assert!(scan(&bytes[..at + windows * WINDOW], at).is_some());
            assert!(scan(&bytes[..at + windows * WINDOW - 1], at).is_none());
            assert!(scan(bytes, bytes.len() + 1).is_none());
        }
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
        fn a_short_number_is_the_nearest_float(text in r"-?(0|[1-9][0-9]{0,7})(\.[0-9]{1,10})?") {
            prop_assert!(scan(&text).is_some(), "{}", text);
            check(&text);
        }

        #[test]
        fn the_neighbourhood_of_a_middle_rounds_correctly(bits in 0x3900_0000_u32..0x4a00_0000, off in -6_i64..=6) {
            let middle = f64::midpoint(f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
            let near = f64::from_bits(middle.to_bits().wrapping_add_signed(off));
            for places in 1..=17 {
                check(&format!("{near:.places$}"));
            }
        }

        #[test]
        fn any_text_is_read_as_by_the_general_reader(text in r"-?[0-9]{0,9}[-.0-9eE, \u{e9}\x00\x7f]{0,24}") {
            check(&text);
        }
    }
}
