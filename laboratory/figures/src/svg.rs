//! A canvas as SVG.

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

pub(crate) fn document(canvas: &Canvas) -> String {
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
        append(&mut document, shape);
    }
    format!("{document}\n")
}

fn append(document: &mut Document, shape: &Shape) {
    match shape {
        Shape::Areas { fill, areas, hint } => {
            let path = Path::new()
                .set("fill", colour(*fill))
                .set("d", outline(areas));
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
                .map(|(x, y)| format!("{},{}", short(*x), short(*y)))
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
                        .set("cx", short(*x))
                        .set("cy", short(*y))
                        .set("r", *radius),
                );
            }
            document.append(group);
        }
        Shape::Text(text) => document.append(element(text)),
    }
}

fn element(text: &Text) -> TextElement {
    let (x, y) = (short(text.x), short(text.y));
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

/// One path for all of them: a tenth of the bytes of as many elements.
fn outline(areas: &[Rect]) -> String {
    let mut path = String::new();
    for area in areas {
        let (width, height) = (short(area.width), short(area.height));
        let (x, y) = (short(area.x), short(area.y));
        write!(path, "M{x} {y}h{width}v{height}h-{width}z").expect("a string takes everything");
    }
    path
}

/// With as many digits as the eye sees.
fn short(value: f32) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    // No minus before a zero.
    format!("{}", rounded + 0.0)
}

fn colour(Rgb(red, green, blue): Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
