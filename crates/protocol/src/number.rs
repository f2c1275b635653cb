//! JSON numbers, read in one pass, which finds the number's end and its digits.
//!
//! Nearly every number then becomes a float with one multiplication or division; the standard library parses the few for which that
//! might round wrongly. The result is always the nearest float.
//!
//! Source: W. D. Clinger, How to read floating point numbers accurately, PLDI 1990 (the exact case). The 32-bit case is wider
//! than his: the 64-bit intermediate result may be inexact as long as it is not next to the middle of two 32-bit floats.

/// A number in a text: `mantissa * 10^exponent`, negated if `negative`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<'a> {
    text: &'a str,
    negative: bool,
    /// The number of all digits, if `exact`.
    mantissa: u64,
    exponent: i32,
    /// True if all digits fit into the mantissa.
    exact: bool,
    integer: bool,
}

/// The powers of ten that a 64-bit float represents exactly.
pub(crate) const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// The powers of ten that 64 bits hold as signed numbers.
pub(crate) static TENS: [u64; 19] = {
    let mut powers = [1; 19];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = 10 * powers[n - 1];
        n += 1;
    }
    powers
};

impl<'a> Number<'a> {
    /// Returns the number at the start of the text, by JSON's grammar.
    #[inline]
    pub(crate) fn scan(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let negative = bytes.first() == Some(&b'-');
        let start = usize::from(negative);
        let (mut mantissa, mut at) = digits(bytes, start, 0);
        if at == start {
            return None;
        }
        // A leading 0 ends the integer part: JSON allows no further digits after it.
        if at - start > 1 && bytes[start] == b'0' {
            at = start + 1;
            mantissa = 0;
        }
        let mut count = at - start;
        let mut exponent = 0;
        let mut integer = true;
        if bytes.get(at) == Some(&b'.') {
            let (with_fraction, end) = many_digits(bytes, at + 1, mantissa);
            let places = end - (at + 1);
            if places == 0 {
                return None;
            }
            mantissa = with_fraction;
            exponent = -i32::try_from(places).unwrap_or(i32::MAX);
            count += places;
            at = end;
            integer = false;
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            let (written, end) = written_exponent(bytes, at + 1)?;
            exponent = exponent.saturating_add(written);
            at = end;
            integer = false;
        }
        let exact = count <= 19 || count - leading_zeros(&bytes[start..]) <= 19;
        Some(Self {
            text: &text[..at],
            negative,
            mantissa,
            exponent,
            exact,
            integer,
        })
    }

    /// Returns the number as written.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the first characters of the number as written, for an error.
    pub(crate) fn excerpt(&self) -> String {
        self.text.chars().take(24).collect()
    }

    /// Returns the value if the number is written as an integer, without fraction and exponent.
    pub(crate) fn integer(&self) -> Option<i128> {
        if !self.integer {
            None
        } else if self.exact {
            let value = i128::from(self.mantissa);
            Some(if self.negative { -value } else { value })
        } else {
            self.text.parse().ok()
        }
    }

    /// Returns true if the number is written as an integer.
    pub(crate) fn is_integer(&self) -> bool {
        self.integer
    }

    /// Returns the nearest 32-bit float; `None` if the number is out of range.
    #[inline]
    pub(crate) fn f32(&self) -> Option<f32> {
        // Conversion and multiplication each have an error of half a unit in the last place: together less than three units.
        // That can change which 32-bit float is nearest only next to the middle of two of them, given by the lower 29 bits.
        const BELOW: u64 = (1 << 29) - 1;
        const MIDDLE: u64 = 1 << 28;
        if let Some(value) = self.approximate() {
            let normal = (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value);
            if normal && (value.to_bits() & BELOW).abs_diff(MIDDLE) > 3 {
                return Some(self.signed(value) as f32);
            }
        }
        self.text
            .parse()
            .ok()
            .filter(|value: &f32| value.is_finite())
    }

    /// Returns the nearest 64-bit float; `None` if the number is out of range.
    #[inline]
    pub(crate) fn f64(&self) -> Option<f64> {
        // Both operands are exact, and one operation rounds once.
        if self.mantissa <= 1 << 53
            && let Some(value) = self.approximate()
        {
            return Some(self.signed(value));
        }
        self.text
            .parse()
            .ok()
            .filter(|value: &f64| value.is_finite())
    }

    fn signed(&self, value: f64) -> f64 {
        value.copysign(if self.negative { -1.0 } else { 1.0 })
    }

    /// Returns the absolute value with an error of at most three units in the last place, if one operation computes it.
    #[inline]
    fn approximate(&self) -> Option<f64> {
        let power = *POWERS.get(self.exponent.unsigned_abs() as usize)?;
        let mantissa = self.mantissa as f64;
        self.exact.then(|| {
            if self.exponent < 0 {
                mantissa / power
            } else {
                mantissa * power
            }
        })
    }
}

/// Appends the digits from `at` on to the mantissa. Returns it, wrapped if there are too many digits, and the end of the digits.
#[inline]
fn digits(bytes: &[u8], mut at: usize, mut mantissa: u64) -> (u64, usize) {
    while let Some(digit) = bytes
        .get(at)
        .map(|byte| byte.wrapping_sub(b'0'))
        .filter(|digit| *digit < 10)
    {
        mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
        at += 1;
    }
    (mantissa, at)
}

/// Returns the number with these digits, one in each byte, the most significant in the lowest.
///
/// Source: D. Lemire, Quickly parsing eight digits, 2018.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10 * 256 + 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let quads = pairs.wrapping_mul(100 * 65_536 + 1) >> 16 & 0x0000_ffff_0000_ffff;
    quads.wrapping_mul(10_000 * 4_294_967_296 + 1) >> 32
}

/// Appends digits to the mantissa like [`digits`], but eight at a time, with leading zeros for those that are missing.
#[inline]
fn many_digits(bytes: &[u8], mut at: usize, mut mantissa: u64) -> (u64, usize) {
    while let Some(window) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        // Digits become 0 to 9; adding 0x76 carries everything above 9 into the byte's highest bit.
        let values = u64::from_le_bytes(*window) ^ 0x3030_3030_3030_3030;
        let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
        let count = others.trailing_zeros() as usize / 8;
        if count == 0 {
            return (mantissa, at);
        }
        let value = eight_digits(values << (64 - 8 * count));
        mantissa = mantissa.wrapping_mul(TENS[count]).wrapping_add(value);
        at += count;
        if count < 8 {
            return (mantissa, at);
        }
    }
    digits(bytes, at, mantissa)
}

/// Returns the exponent after an `e`, saturated, and its end.
fn written_exponent(bytes: &[u8], at: usize) -> Option<(i32, usize)> {
    let sign = bytes.get(at).filter(|byte| matches!(byte, b'+' | b'-'));
    let start = at + usize::from(sign.is_some());
    let mut end = start;
    let mut value = 0_i32;
    while let Some(digit) = bytes
        .get(end)
        .map(|byte| byte.wrapping_sub(b'0'))
        .filter(|digit| *digit < 10)
    {
        value = value.saturating_mul(10).saturating_add(i32::from(digit));
        end += 1;
    }
    let negative = sign == Some(&b'-');
    (end > start).then_some((if negative { -value } else { value }, end))
}

/// Returns the number of zeros before the first other digit.
#[cold]
fn leading_zeros(digits: &[u8]) -> usize {
    digits
        .iter()
        .take_while(|byte| matches!(byte, b'0' | b'.'))
        .filter(|byte| **byte == b'0')
        .count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) {
        let number = Number::scan(text).unwrap();
        assert_eq!(number.text(), text);
        let finite32 = Some(text.parse::<f32>().unwrap()).filter(|value| value.is_finite());
        let finite64 = Some(text.parse::<f64>().unwrap()).filter(|value| value.is_finite());
        assert_eq!(
            number.f32().map(f32::to_bits),
            finite32.map(f32::to_bits),
            "{text}"
        );
        assert_eq!(
            number.f64().map(f64::to_bits),
            finite64.map(f64::to_bits),
            "{text}"
        );
    }

    #[test]
    fn hard_numbers_are_read_exactly() {
        for text in [
            "0",
            "-0",
            "-0.0",
            "0e5",
            "1",
            "0.1",
            "1e22",
            "1e23",
            "9007199254740993",
            "18446744073709551615",
            "18446744073709551616",
            // Middles of two 32-bit floats, and next to them.
            "16777217",
            "16777217.000000001",
            "16777216.999999999",
            "1.00000005960464477539",
            "1.000000059604644775390625",
            "1.0000000596046447754",
            "0.000000000000000000000000000000000000011754943508222875",
            "1.1754943e-38",
            "1.4e-45",
            "7e-46",
            "3.4028235e38",
            "3.4028235677973366e38",
            "3.4028236e38",
            "1.7976931348623157e308",
            "1.7976931348623159e308",
            "1e400",
            "-1e400",
            "1e-400",
            "0.00012345678901234567",
            "123456789012345678901234567890",
            "1e999999999999",
            "0.1e-999999999999",
        ] {
            check(text);
        }
    }

    #[test]
    fn only_json_numbers_are_numbers() {
        for text in [
            "",
            "-",
            "+1",
            ".5",
            "1.",
            "1.e3",
            "1e",
            "1e+",
            "NaN",
            "Infinity",
            "-Infinity",
            "0x",
        ] {
            let scanned = Number::scan(text).map(|number| number.text());
            assert_eq!(
                scanned,
                if text == "0x" { Some("0") } else { None },
                "{text}"
            );
        }
        assert_eq!(Number::scan("01").unwrap().text(), "0");
        assert_eq!(
            Number::scan("18446744073709551615").unwrap().integer(),
            Some(i128::from(u64::MAX))
        );
        assert_eq!(Number::scan("-12").unwrap().integer(), Some(-12));
        assert_eq!(Number::scan("1.0").unwrap().integer(), None);
        assert_eq!(Number::scan("1e2").unwrap().integer(), None);
        assert_eq!(Number::scan(&"9".repeat(60)).unwrap().integer(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn every_written_number_is_read_as_the_nearest_float(
            text in r"-?(0|[1-9][0-9]{0,21})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?",
        ) {
            check(&text);
        }

        #[test]
        fn every_32_bit_float_comes_back(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            for text in [value.to_string(), format!("{value:e}"), format!("{:e}", f64::from(value))] {
                prop_assert_eq!(Number::scan(&text).unwrap().f32().unwrap().to_bits(), bits, "{}", text);
            }
        }

        #[test]
        fn the_neighbourhood_of_a_middle_rounds_correctly(bits in 0x0080_0000_u32..0x7f00_0000, off in -6_i64..=6) {
            let middle = f64::midpoint(f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
            let near = f64::from_bits(middle.to_bits().wrapping_add_signed(off));
            check(&format!("{near:e}"));
            check(&format!("{near:.17e}"));
        }

        #[test]
        fn every_64_bit_float_comes_back(value in any::<f64>()) {
            let text = format!("{value:e}");
            prop_assert_eq!(Number::scan(&text).unwrap().f64().unwrap().to_bits(), value.to_bits());
        }
    }
}
