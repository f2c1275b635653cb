//! The one font: how wide a text is, and the outlines of its letters.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// What SVG viewers are asked for: the same font, or one of its width.
pub(crate) const FAMILY: &str = "Roboto, Helvetica, Arial, sans-serif";

const BYTES: &[u8] = include_bytes!("../font/Roboto-Latin.ttf");

/// The font that is part of the program.
pub(crate) struct Font(Face<'static>);

impl Font {
    pub(crate) fn new() -> Self {
        Self(Face::parse(BYTES, 0).expect("the font in the program is one"))
    }

    fn scale(&self, size: f32) -> f32 {
        size / f32::from(self.0.units_per_em())
    }

    /// The letter's shape, or that of a question mark.
    fn glyph(&self, letter: char) -> GlyphId {
        let glyph = self.0.glyph_index(letter);
        glyph
            .or_else(|| self.0.glyph_index('?'))
            .unwrap_or_default()
    }

    fn advance(&self, glyph: GlyphId) -> f32 {
        f32::from(self.0.glyph_hor_advance(glyph).unwrap_or_default())
    }

    /// How wide a text of this size is.
    pub(crate) fn width(&self, text: &str, size: f32) -> f32 {
        let units: f32 = text
            .chars()
            .map(|letter| self.advance(self.glyph(letter)))
            .sum();
        units * self.scale(size)
    }

    /// A text cut to a width, with an ellipsis where it was longer.
    pub(crate) fn cut(&self, text: &str, size: f32, width: f32) -> String {
        if self.width(text, size) <= width {
            return text.to_owned();
        }
        let mut cut: String = text.to_owned();
        while cut.pop().is_some() {
            let shown = format!("{}…", cut.trim_end());
            if self.width(&shown, size) <= width {
                return shown;
            }
        }
        String::new()
    }

    /// Draws a text that begins at the origin and stands on its baseline; y grows upwards.
    pub(crate) fn outline(&self, text: &str, size: f32, pen: &mut impl Pen) {
        let scale = self.scale(size);
        let mut x = 0.0;
        for letter in text.chars() {
            let glyph = self.glyph(letter);
            let mut builder = Builder { pen, x, scale };
            self.0.outline_glyph(glyph, &mut builder);
            x += self.advance(glyph) * scale;
        }
    }
}

/// Whom outlines are told.
pub(crate) trait Pen {
    fn move_to(&mut self, x: f32, y: f32);
    fn line_to(&mut self, x: f32, y: f32);
    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32);
    fn close(&mut self);
}

struct Builder<'a, P: Pen> {
    pen: &'a mut P,
    x: f32,
    scale: f32,
}

impl<P: Pen> Builder<'_, P> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, y * self.scale)
    }
}

impl<P: Pen> OutlineBuilder for Builder<'_, P> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.pen.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.pen.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.pen.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, _: f32, _: f32, _: f32, _: f32, _: f32, _: f32) {
        unreachable!("a TrueType font has quadratic curves only");
    }

    fn close(&mut self) {
        self.pen.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_label_is_cut_to_its_room_and_a_short_one_is_not() {
        let font = Font::new();
        assert_eq!(font.cut("bert", 10.0, 100.0), "bert");
        let cut = font.cut("efficientnet_b7 with many replicas", 10.0, 60.0);
        assert!(cut.ends_with('…') && cut.starts_with("eff"), "{cut}");
        assert!(font.width(&cut, 10.0) <= 60.0);
        assert_eq!(font.cut("bert", 10.0, 1.0), "");
    }

    #[test]
    fn letters_that_the_font_lacks_are_as_wide_as_a_question_mark() {
        let font = Font::new();
        assert!((font.width("山", 10.0) - font.width("?", 10.0)).abs() < 1e-6);
    }
}
