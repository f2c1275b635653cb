//! Encodes a canvas as SVG.

use std::fmt::Write as _;

use ::svg::{
    Document, Node,
    node::element::{Circle, Group, Path, Polyline, Rectangle, Text as TextElement, Title},
};

use crate::{
    canvas::{Anchor, Canvas, Rect, Shape, Text},
    font,
    palette::Rgb,
};

pub(crate) fn encode(canvas: &Canvas) -> String {
    let (width, height) = (canvas.width.ceil(), canvas.height.ceil());
    let background = Rectangle::new()
        .set("width", "100%")
        .set("height", "100%")
        .set("fill", colour(Rgb::WHITE));
    let mut document = Document::new()
        .set("viewBox", format!("0 0 {width} {height}"))
        .set("width", width)
        .set("height", height)
        .set("font-family", font::FAMILY)
        .add(background);
    for shape in &canvas.shapes {
        append_shape(&mut document, shape);
    }
    format!("{document}\n")
}

fn append_shape(document: &mut Document, shape: &Shape) {
    match shape {
        Shape::Areas { fill, areas, hint } => {
            let path = Path::new()
                .set("fill", colour(*fill))
                .set("d", areas_path(areas));
            document.append(match hint {
                Some(hint) => path.add(Title::new(hint.clone())),
                None => path,
            });
        }
        Shape::Line {
            colour: stroke,
            width,
            dashed,
            points,
        } => {
            let points: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("{},{}", format_length(*x), format_length(*y)))
                .collect();
            let line = Polyline::new()
                .set("points", points.join(" "))
                .set("fill", "none")
                .set("stroke", colour(*stroke))
                .set("stroke-width", *width);
            document.append(if *dashed {
                line.set("stroke-dasharray", "5 3")
            } else {
                line
            });
        }
        Shape::Dots {
            colour: fill,
            radius,
            points,
        } => {
            let mut group = Group::new().set("fill", colour(*fill));
            for (x, y) in points {
                group.append(
                    Circle::new()
                        .set("cx", format_length(*x))
                        .set("cy", format_length(*y))
                        .set("r", *radius),
                );
            }
            document.append(group);
        }
        Shape::Text(text) => document.append(text_element(text)),
    }
}

fn text_element(text: &Text) -> TextElement {
    let (x, y) = (format_length(text.x), format_length(text.y));
    let element = TextElement::new(text.letters.as_str())
        .set("font-size", text.size)
        .set("fill", colour(text.colour))
        .set("x", x.as_str())
        .set("y", y.as_str());
    let element = match text.anchor {
        Anchor::Start => element,
        Anchor::Middle => element.set("text-anchor", "middle"),
        Anchor::End => element.set("text-anchor", "end"),
    };
    if text.upwards {
        element.set("transform", format!("rotate(-90 {x} {y})"))
    } else {
        element
    }
}

/// Returns one path for all areas, which has a tenth of the bytes of one element per area.
fn areas_path(areas: &[Rect]) -> String {
    let mut path = String::new();
    for area in areas {
        let (width, height) = (format_length(area.width), format_length(area.height));
        let (x, y) = (format_length(area.x), format_length(area.y));
        write!(path, "M{x} {y}h{width}v{height}h-{width}z")
            .expect("writing to a string cannot fail");
    }
    path
}

/// Formats a length with one decimal place, more than the eye sees.
fn format_length(value: f32) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    // Adding zero turns -0 into 0.
    format!("{}", rounded + 0.0)
}

fn colour(Rgb(red, green, blue): Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
