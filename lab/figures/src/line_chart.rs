//! Charts of curves, dots and bars over two axes.

use crate::{
    axis::{self, Scale, TICK},
    canvas::{Anchor, Canvas, Rect, Shape},
    chart::Chart,
    palette::{Rgb, Series},
};

/// A chart of curves over two axes that begin at 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineChart {
    /// The text above the chart.
    pub title: String,
    /// The label of the horizontal axis, with its unit.
    pub x_axis: String,
    /// The label of the vertical axis, with its unit.
    pub y_axis: String,
    /// The end of the horizontal axis, where curves are cut; `None` for the largest value.
    pub x_end: Option<f64>,
    /// The end of the vertical axis; `None` for the largest value.
    pub y_end: Option<f64>,
    /// The series of the legend.
    pub series: Vec<Series>,
    /// The curves, in the order of painting.
    pub curves: Vec<Curve>,
    /// The vertical lines with labels.
    pub reference_lines: Vec<ReferenceLine>,
}

/// A list of points that are drawn alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The index of the curve's series in the chart.
    pub series: usize,
    /// The style of drawing.
    pub stroke: Stroke,
    /// The points, with ascending x unless the stroke is [`Stroke::Dots`].
    pub points: Vec<(f64, f64)>,
}

/// The style in which points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// A line through the points.
    Line,
    /// A line through the points, and a dot at each.
    LineAndDots,
    /// A dot at each point.
    Dots,
    /// A bar from each point to the next, as high as the first of them.
    Bars,
}

/// A vertical line with a label.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceLine {
    /// The value on the horizontal axis.
    pub x: f64,
    /// The text beside the line.
    pub label: String,
}

/// The height of the area, in pixels.
const HEIGHT: f32 = 200.0;

impl LineChart {
    fn scales(&self) -> (Scale, Scale) {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let x = self
            .x_end
            .unwrap_or_else(|| largest(&mut points().map(|point| point.0)));
        let y = self.y_end.map_or_else(
            || Scale::rounded(largest(&mut points().map(|point| point.1))),
            Scale::exact,
        );
        (Scale::exact(x), y)
    }
}

impl Chart for LineChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn series(&self) -> &[Series] {
        &self.series
    }

    fn min_width(&self, _: &Canvas) -> f32 {
        200.0
    }

    fn height(&self, _: &Canvas) -> f32 {
        HEIGHT + 36.0
    }

    fn draw(&self, canvas: &mut Canvas, bounds: Rect) {
        let (x, y) = self.scales();
        let left = axis::left_margin(canvas, y);
        let area = Rect {
            x: bounds.x + left,
            y: bounds.y,
            // The last number of the axis is centred on its end.
            width: bounds.width - left - 14.0,
            height: HEIGHT,
        };
        axis::draw_horizontal(canvas, area, x, &self.x_axis);
        axis::draw_vertical(canvas, area, y, &self.y_axis);
        for line in self.reference_lines.iter().filter(|line| line.x <= x.top) {
            let at = area.x + x.fraction(line.x) * area.width;
            canvas.line((at, area.y), (at, area.bottom()), Rgb::LIMIT, true);
            canvas.text_upwards(
                at + TICK + 2.0,
                area.bottom() - 5.0,
                TICK,
                Anchor::Start,
                &line.label,
            );
        }
        for curve in &self.curves {
            let place = |(px, py): (f64, f64)| {
                let (right, up) = (x.fraction(px) * area.width, y.fraction(py) * area.height);
                (area.x + right, area.bottom() - up)
            };
            let points: Vec<(f32, f32)> = visible_points(curve, x.top)
                .into_iter()
                .map(place)
                .collect();
            self.draw_curve(canvas, curve, points, area.bottom());
        }
        axis::draw_frame(canvas, area);
    }
}

impl LineChart {
    fn draw_curve(&self, canvas: &mut Canvas, curve: &Curve, points: Vec<(f32, f32)>, bottom: f32) {
        let colour = self.series[curve.series].colour;
        if curve.stroke == Stroke::Bars {
            let bar = |pair: &[(f32, f32)]| Rect {
                x: pair[0].0,
                y: pair[0].1,
                width: pair[1].0 - pair[0].0,
                height: bottom - pair[0].1,
            };
            let areas = points.windows(2).map(bar);
            canvas.shapes.push(Shape::Areas {
                fill: colour.rgb(),
                areas: areas.filter(|bar| bar.height > 0.0).collect(),
                hint: None,
            });
            return;
        }
        if curve.stroke != Stroke::Dots {
            canvas.shapes.push(Shape::Line {
                colour: colour.rgb(),
                width: 1.8,
                dashed: colour.is_repeated(),
                points: points.clone(),
            });
        }
        if curve.stroke != Stroke::Line {
            canvas.shapes.push(Shape::Dots {
                colour: colour.rgb(),
                radius: if curve.stroke == Stroke::Dots {
                    1.6
                } else {
                    3.0
                },
                points,
            });
        }
    }
}

/// Returns the points up to the end of the axis, with a line's intersection with it.
fn visible_points(curve: &Curve, end: f64) -> Vec<(f64, f64)> {
    let inside = |point: &&(f64, f64)| point.0 <= end;
    if curve.stroke == Stroke::Dots {
        return curve.points.iter().filter(inside).copied().collect();
    }
    let mut visible: Vec<(f64, f64)> = curve.points.iter().take_while(inside).copied().collect();
    if let (Some(&last), Some(&next)) = (visible.last(), curve.points.get(visible.len())) {
        let fraction = (end - last.0) / (next.0 - last.0);
        visible.push((end, last.1 + fraction * (next.1 - last.1)));
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_leaves_the_chart_is_cut_at_its_edge() {
        let mut curve = Curve {
            series: 0,
            stroke: Stroke::Line,
            points: vec![(0.0, 0.0), (100.0, 0.5), (300.0, 1.0)],
        };
        assert_eq!(
            visible_points(&curve, 200.0),
            [(0.0, 0.0), (100.0, 0.5), (200.0, 0.75)]
        );
        assert_eq!(visible_points(&curve, 400.0), curve.points);
        curve.stroke = Stroke::Dots;
        assert_eq!(visible_points(&curve, 200.0), [(0.0, 0.0), (100.0, 0.5)]);
    }
}
