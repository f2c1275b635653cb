//! The shapes of a picture, in the order of painting, before they are encoded as SVG.

use crate::{
    font::Font,
    palette::{Colour, Rgb},
};

/// A rectangle: left, top, width and height.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rect {
    pub(crate) x: f32,
    pub(crate) y: f32,
    pub(crate) width: f32,
    pub(crate) height: f32,
}

impl Rect {
    pub(crate) fn right(self) -> f32 {
        self.x + self.width
    }

    pub(crate) fn bottom(self) -> f32 {
        self.y + self.height
    }
}

/// The point of a text at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A text, positioned by its baseline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) x: f32,
    pub(crate) y: f32,
    pub(crate) size: f32,
    pub(crate) anchor: Anchor,
    /// True if the text reads upwards.
    pub(crate) upwards: bool,
    pub(crate) colour: Rgb,
    pub(crate) letters: String,
}

/// A shape of a picture.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Areas of one colour. A browser shows the hint as a tooltip.
    Areas {
        fill: Rgb,
        areas: Vec<Rect>,
        hint: Option<String>,
    },
    Line {
        colour: Rgb,
        width: f32,
        dashed: bool,
        points: Vec<(f32, f32)>,
    },
    Dots {
        colour: Rgb,
        radius: f32,
        points: Vec<(f32, f32)>,
    },
    Text(Text),
}

/// A picture that is painted shape by shape. Lengths are in pixels of an SVG, and y grows downwards.
pub(crate) struct Canvas {
    pub(crate) width: f32,
    pub(crate) height: f32,
    pub(crate) font: Font,
    pub(crate) shapes: Vec<Shape>,
}

impl Canvas {
    pub(crate) fn new() -> Self {
        Self {
            width: 0.0,
            height: 0.0,
            font: Font::new(),
            shapes: Vec::new(),
        }
    }

    pub(crate) fn areas(&mut self, colour: Colour, areas: Vec<Rect>) {
        if !areas.is_empty() {
            self.shapes.push(Shape::Areas {
                fill: colour.rgb(),
                areas,
                hint: None,
            });
        }
    }

    pub(crate) fn area_with_hint(&mut self, colour: Colour, area: Rect, hint: &str) {
        self.shapes.push(Shape::Areas {
            fill: colour.rgb(),
            areas: vec![area],
            hint: Some(hint.to_owned()),
        });
    }

    pub(crate) fn line(&mut self, from: (f32, f32), to: (f32, f32), colour: Rgb, dashed: bool) {
        self.shapes.push(Shape::Line {
            colour,
            width: 1.0,
            dashed,
            points: vec![from, to],
        });
    }

    /// Adds dark text that reads from left to right.
    pub(crate) fn text(
        &mut self,
        x: f32,
        y: f32,
        size: f32,
        anchor: Anchor,
        text: impl Into<String>,
    ) {
        self.shapes.push(Shape::Text(Text {
            x,
            y,
            size,
            anchor,
            upwards: false,
            colour: Rgb::TEXT,
            letters: text.into(),
        }));
    }

    /// Adds dark text that reads upwards.
    pub(crate) fn text_upwards(&mut self, x: f32, y: f32, size: f32, anchor: Anchor, text: &str) {
        self.shapes.push(Shape::Text(Text {
            x,
            y,
            size,
            anchor,
            upwards: true,
            colour: Rgb::TEXT,
            letters: text.to_owned(),
        }));
    }
}
