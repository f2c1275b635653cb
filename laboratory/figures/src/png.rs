//! Encodes a canvas as PNG.

use tiny_skia::{
    FillRule, LineCap, Paint, Path, PathBuilder, Pixmap, Rect as SkiaRect, Stroke, StrokeDash,
    Transform,
};

use crate::{
    canvas::{Anchor, Canvas, Shape, Text},
    font::Font,
    palette::Rgb,
};

/// The pixels of a PNG per pixel of an SVG: 2 is sharp in print and on screens with high resolution.
const SCALE: f32 = 2.0;

pub(crate) fn encode(canvas: &Canvas) -> Vec<u8> {
    let pixels = |length: f32| (length.ceil() * SCALE) as u32;
    let mut pixmap = Pixmap::new(pixels(canvas.width), pixels(canvas.height))
        .expect("pictures have a limited size above 0");
    pixmap.fill(tiny_skia::Color::WHITE);
    let scale = Transform::from_scale(SCALE, SCALE);
    for shape in &canvas.shapes {
        draw(&mut pixmap, shape, &canvas.font, scale);
    }
    pixmap.encode_png().expect("encoding to memory cannot fail")
}

fn draw(pixmap: &mut Pixmap, shape: &Shape, font: &Font, scale: Transform) {
    match shape {
        Shape::Areas { fill, areas, .. } => {
            for area in areas {
                if let Some(rect) = SkiaRect::from_xywh(area.x, area.y, area.width, area.height) {
                    pixmap.fill_rect(rect, &paint(*fill), scale, None);
                }
            }
        }
        Shape::Line {
            colour,
            width,
            dashed,
            points,
        } => {
            let stroke = Stroke {
                width: *width,
                line_cap: LineCap::Butt,
                dash: dashed
                    .then(|| StrokeDash::new(vec![5.0, 3.0], 0.0))
                    .flatten(),
                ..Stroke::default()
            };
            let mut path = PathBuilder::new();
            for (i, &(x, y)) in points.iter().enumerate() {
                if i == 0 {
                    path.move_to(x, y);
                } else {
                    path.line_to(x, y);
                }
            }
            // A line of one point has no path and is invisible.
            if let Some(path) = path.finish() {
                pixmap.stroke_path(&path, &paint(*colour), &stroke, scale, None);
            }
        }
        Shape::Dots {
            colour,
            radius,
            points,
        } => {
            let mut path = PathBuilder::new();
            for &(x, y) in points {
                path.push_circle(x, y, *radius);
            }
            fill(pixmap, path.finish(), *colour, scale);
        }
        Shape::Text(text) => draw_text(pixmap, text, font, scale),
    }
}

fn draw_text(pixmap: &mut Pixmap, text: &Text, font: &Font, scale: Transform) {
    let width = font.width(&text.letters, text.size);
    let left_of_anchor = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => width / 2.0,
        Anchor::End => width,
    };
    // The transformations apply from the innermost on: y of letters grows upwards, y of pixels downwards.
    let mut place = Transform::from_scale(1.0, -1.0).pre_translate(-left_of_anchor, 0.0);
    if text.upwards {
        place = place.post_rotate(-90.0);
    }
    let place = place.post_translate(text.x, text.y).post_concat(scale);
    fill(
        pixmap,
        font.outline(&text.letters, text.size),
        text.colour,
        place,
    );
}

fn fill(pixmap: &mut Pixmap, path: Option<Path>, colour: Rgb, transform: Transform) {
    if let Some(path) = path {
        pixmap.fill_path(&path, &paint(colour), FillRule::Winding, transform, None);
    }
}

fn paint(Rgb(red, green, blue): Rgb) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, 255);
    paint
}
