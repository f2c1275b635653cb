//! Curves and dots over two axes.

use crate::{
    axis::{self, Scale, TICK},
    canvas::{Anchor, Canvas, Rect, Shape},
    figure::Draw,
    palette::{Rgb, Series},
};

/// Curves over two axes that begin at 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineChart {
    /// What it shows.
    pub title: String,
    /// What goes to the right, with its unit.
    pub x_axis: String,
    /// What goes up, with its unit.
    pub y_axis: String,
    /// Where the axis ends, and curves are cut; without it at the largest value.
    pub x_end: Option<f64>,
    /// Where the axis ends; without it at the largest value.
    pub y_end: Option<f64>,
    /// What the curves are, for the legend.
    pub series: Vec<Series>,
    /// In the order in which they are painted.
    pub curves: Vec<Curve>,
    /// Lines across.
    pub marks: Vec<Mark>,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its place among the chart's series.
    pub series: usize,
    /// How they are drawn.
    pub stroke: Stroke,
    /// For [`Stroke::Line`] with ascending x.
    pub points: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Joined by a line.
    Line,
    /// Joined by a line, and a dot at each.
    Dotted,
    /// A dot at each.
    Dots,
    /// A bar from each to the next, as high as the first of them.
    Bars,
}

/// A vertical line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Where on the axis.
    pub x: f64,
    /// Stands beside it.
    pub label: String,
}

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
            Scale::until,
        );
        (Scale::until(x), y)
    }
}

impl Draw for LineChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn series(&self) -> &[Series] {
        &self.series
    }

    fn narrowest(&self, _: &Canvas) -> f32 {
        200.0
    }

    fn height(&self, _: &Canvas) -> f32 {
        HEIGHT + 36.0
    }

    fn draw(&self, canvas: &mut Canvas, room: Rect) {
        let (x, y) = self.scales();
        let left = axis::room_on_the_left(canvas, y);
        let area = Rect {
            x: room.x + left,
            y: room.y,
            // The last number of the axis stands around its end.
            width: room.width - left - 14.0,
            height: HEIGHT,
        };
        axis::horizontal(canvas, area, x, &self.x_axis);
        axis::vertical(canvas, area, y, &self.y_axis);
        for mark in self.marks.iter().filter(|mark| mark.x <= x.top) {
            let at = area.x + x.share(mark.x) * area.width;
            canvas.line((at, area.y), (at, area.bottom()), Rgb::LIMIT, true);
            canvas.text_upwards(
                at + TICK + 2.0,
                area.bottom() - 5.0,
                TICK,
                Anchor::Start,
                &mark.label,
            );
        }
        for curve in &self.curves {
            let place = |(px, py): (f64, f64)| {
                let (right, up) = (x.share(px) * area.width, y.share(py) * area.height);
                (area.x + right, area.bottom() - up)
            };
            let points: Vec<(f32, f32)> = visible(curve, x.top).into_iter().map(place).collect();
            self.paint(canvas, curve, points, area.bottom());
        }
        axis::frame(canvas, area);
    }
}

impl LineChart {
    fn paint(&self, canvas: &mut Canvas, curve: &Curve, points: Vec<(f32, f32)>, bottom: f32) {
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

/// What lies left of the end; a line is cut there, not bent.
fn visible(curve: &Curve, end: f64) -> Vec<(f64, f64)> {
    let inside = |point: &&(f64, f64)| point.0 <= end;
    if curve.stroke == Stroke::Dots {
        return curve.points.iter().filter(inside).copied().collect();
    }
    let mut shown: Vec<(f64, f64)> = curve.points.iter().take_while(inside).copied().collect();
    if let (Some(&last), Some(&next)) = (shown.last(), curve.points.get(shown.len())) {
        let share = (end - last.0) / (next.0 - last.0);
        shown.push((end, last.1 + share * (next.1 - last.1)));
    }
    shown
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
            visible(&curve, 200.0),
            [(0.0, 0.0), (100.0, 0.5), (200.0, 0.75)]
        );
        assert_eq!(visible(&curve, 400.0), curve.points);
        curve.stroke = Stroke::Dots;
        assert_eq!(visible(&curve, 200.0), [(0.0, 0.0), (100.0, 0.5)]);
    }
}
