//! The embedded font: widths of texts and outlines of their letters.

use tiny_skia::{Path, PathBuilder};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

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

    /// Returns the outline of a text that begins at the origin of its baseline; y grows upwards. `None` for a text without visible letters.
    pub(crate) fn outline(&self, text: &str, size: f32) -> Option<Path> {
        let mut outline = Outline {
            path: PathBuilder::new(),
            x: 0.0,
            scale: self.scale(size),
        };
        for letter in text.chars() {
            let glyph = self.glyph(letter);
            self.0.outline_glyph(glyph, &mut outline);
            outline.x += self.advance(glyph) * outline.scale;
        }
        outline.path.finish()
    }
}

/// The outline of a text, letter by letter.
struct Outline {
    path: PathBuilder,
    /// The start of the current letter.
    x: f32,
    /// Pixels per unit of the font.
    scale: f32,
}

impl Outline {
    fn place(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, y * self.scale)
    }
}

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.place(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.place(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.place(x1, y1), self.place(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, _: f32, _: f32, _: f32, _: f32, _: f32, _: f32) {
        unreachable!("a TrueType font has quadratic curves only");
    }

    fn close(&mut self) {
        self.path.close();
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
