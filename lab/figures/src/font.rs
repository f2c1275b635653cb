//! The embedded font, which tells the widths of texts.

use ttf_parser::{Face, GlyphId};

/// The fonts that an SVG names: the embedded one, and others of its width for viewers without it.
pub(crate) const FAMILY: &str = "Roboto, Helvetica, Arial, sans-serif";

const BYTES: &[u8] = include_bytes!("../font/Roboto-Latin.ttf");

/// The font that is embedded in the program.
pub(crate) struct Font(Face<'static>);

impl Font {
    pub(crate) fn new() -> Self {
        Self(Face::parse(BYTES, 0).expect("the embedded font is valid"))
    }

    fn scale(&self, size: f32) -> f32 {
        size / f32::from(self.0.units_per_em())
    }

    /// Returns the letter's glyph, or that of a question mark if the font lacks the letter.
    fn glyph(&self, letter: char) -> GlyphId {
        let glyph = self.0.glyph_index(letter);
        glyph
            .or_else(|| self.0.glyph_index('?'))
            .unwrap_or_default()
    }

    fn advance(&self, glyph: GlyphId) -> f32 {
        f32::from(self.0.glyph_hor_advance(glyph).unwrap_or_default())
    }

    /// Returns the width of a text of this size.
    pub(crate) fn width(&self, text: &str, size: f32) -> f32 {
        let units: f32 = text
            .chars()
            .map(|letter| self.advance(self.glyph(letter)))
            .sum();
        units * self.scale(size)
    }

    /// Returns the text, truncated to a width with an ellipsis if it is longer.
    pub(crate) fn truncate(&self, text: &str, size: f32, width: f32) -> String {
        if self.width(text, size) <= width {
            return text.to_owned();
        }
        let mut start: String = text.to_owned();
        while start.pop().is_some() {
            let truncated = format!("{}…", start.trim_end());
            if self.width(&truncated, size) <= width {
                return truncated;
            }
        }
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_labels_are_truncated() {
        let font = Font::new();
        assert_eq!(font.truncate("bert", 10.0, 100.0), "bert");
        let truncated = font.truncate("efficientnet_b7 with many replicas", 10.0, 60.0);
        assert!(
            truncated.ends_with('…') && truncated.starts_with("eff"),
            "{truncated}"
        );
        assert!(font.width(&truncated, 10.0) <= 60.0);
        assert_eq!(font.truncate("bert", 10.0, 1.0), "");
    }

    #[test]
    fn missing_letters_are_as_wide_as_a_question_mark() {
        let font = Font::new();
        assert!((font.width("山", 10.0) - font.width("?", 10.0)).abs() < 1e-6);
    }
}
