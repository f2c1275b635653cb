//! Figures, which have a title, notes, legends, and panels in a grid.

use crate::{
    BarChart, LineChart, PlanChart, Series,
    axis::{LABEL, TITLE},
    canvas::{Anchor, Canvas, Rect},
    chart::Chart,
    svg,
};

/// A figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// The title, above everything else.
    pub title: String,
    /// Notes below the title, one line each.
    pub notes: Vec<String>,
    /// The number of panels in a row; 0 is 1.
    pub columns: usize,
    /// The panels, row by row.
    pub panels: Vec<Panel>,
}

/// A panel of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Panel {
    /// A plan.
    Plan(PlanChart),
    /// Stacked bars.
    Bars(BarChart),
    /// Curves.
    Lines(LineChart),
}

impl Panel {
    fn chart(&self) -> &dyn Chart {
        match self {
            Self::Plan(chart) => chart,
            Self::Bars(chart) => chart,
            Self::Lines(chart) => chart,
        }
    }
}

/// The least width of a figure, in pixels.
const WIDTH: f32 = 1000.0;
/// The margin around a figure, in pixels.
const MARGIN: f32 = 16.0;
/// The gap between panels, in pixels.
const GAP: f32 = 24.0;
/// The size of the title, in pixels.
const HEADLINE: f32 = 16.0;
/// The height of a line of a legend, in pixels.
const LEGEND_LINE: f32 = 18.0;
/// The size of a colour in a legend, in pixels.
const SWATCH: f32 = 11.0;
/// The largest width and height of a figure, in pixels. Viewers take long for larger ones.
const MAX_LENGTH: f32 = 12_000.0;

impl Figure {
    /// Returns the figure as SVG.
    pub fn to_svg(&self) -> String {
        svg::encode(&self.paint())
    }

    fn paint(&self) -> Canvas {
        let mut canvas = Canvas::new();
        let columns = self.columns.max(1);
        let min_widths = self
            .panels
            .iter()
            .map(|panel| panel.chart().min_width(&canvas));
        let gaps = GAP * (columns - 1) as f32;
        let needed = min_widths.fold(0.0, f32::max) * columns as f32 + gaps;
        let inner = needed.clamp(WIDTH - 2.0 * MARGIN, MAX_LENGTH);
        canvas.width = inner + 2.0 * MARGIN;
        let mut y = self.paint_header(&mut canvas);
        let width = (inner - gaps) / columns as f32;
        let mut shown: &[Series] = &[];
        for row in self.panels.chunks(columns) {
            let shared = shared_series(row);
            if let Some(series) = shared.filter(|series| *series != shown) {
                y += paint_legend(&mut canvas, series, MARGIN, y, inner);
                shown = series;
            }
            let mut height: f32 = 0.0;
            for (i, panel) in row.iter().enumerate() {
                let bounds = Rect {
                    x: MARGIN + (width + GAP) * i as f32,
                    y,
                    width,
                    height: 0.0,
                };
                height = height.max(paint_panel(
                    &mut canvas,
                    panel.chart(),
                    bounds,
                    shared.is_none(),
                ));
            }
            y += height + GAP;
            if y > MAX_LENGTH {
                break;
            }
        }
        canvas.height = y.min(MAX_LENGTH);
        canvas
    }

    /// Paints title and notes, and returns their lower end.
    fn paint_header(&self, canvas: &mut Canvas) -> f32 {
        let mut y = MARGIN + HEADLINE;
        canvas.text(MARGIN, y, HEADLINE, Anchor::Start, self.title.as_str());
        y += 4.0;
        for note in &self.notes {
            y += LABEL + 5.0;
            canvas.text(MARGIN, y, LABEL, Anchor::Start, note.as_str());
        }
        y + 14.0
    }
}

/// Returns the series of all panels of a row, if they are the same. Their legend is painted above the row, unless the row before has it.
fn shared_series(row: &[Panel]) -> Option<&[Series]> {
    let mut all = row.iter().map(|panel| panel.chart().series());
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Paints title, legend and chart, and returns their height.
fn paint_panel(canvas: &mut Canvas, chart: &dyn Chart, bounds: Rect, with_legend: bool) -> f32 {
    let mut y = bounds.y;
    if !chart.title().is_empty() {
        let title = canvas.font.truncate(chart.title(), TITLE, bounds.width);
        canvas.text(bounds.x, y + TITLE, TITLE, Anchor::Start, title);
        y += TITLE + 10.0;
    }
    if with_legend {
        y += paint_legend(canvas, chart.series(), bounds.x, y, bounds.width);
    }
    chart.draw(canvas, Rect { y, ..bounds });
    y + chart.height(canvas) - bounds.y
}

/// Paints names and their colours, in as many lines as necessary, and returns their height.
fn paint_legend(canvas: &mut Canvas, series: &[Series], left: f32, top: f32, width: f32) -> f32 {
    let (mut x, mut y) = (left, top);
    for series in series {
        let label = canvas
            .font
            .truncate(&series.label, LABEL, width - SWATCH - 6.0);
        // The fonts of SVG viewers may be a little wider.
        let needed = SWATCH + 5.0 + canvas.font.width(&label, LABEL) * 1.06;
        if x > left && x + needed > left + width {
            (x, y) = (left, y + LEGEND_LINE);
        }
        let swatch = Rect {
            x,
            y,
            width: SWATCH,
            height: SWATCH,
        };
        canvas.areas(series.colour, vec![swatch]);
        canvas.text(
            x + SWATCH + 5.0,
            y + SWATCH - 1.5,
            LABEL,
            Anchor::Start,
            label,
        );
        x += needed + 16.0;
    }
    y + LEGEND_LINE + 4.0 - top
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bar, BarGroup, Curve, DeviceBar, ReferenceLine, Segment, Stroke};

    fn bars(bars: usize) -> Panel {
        let bar = |i| Bar {
            label: format!("policy {i}"),
            values: vec![300.0, 200.0],
        };
        Panel::Bars(BarChart {
            value_axis: "requests/s <within> the \"SLO\"".to_owned(),
            series: Series::from_labels(["bert", "gpt2"]),
            groups: vec![BarGroup {
                label: "1 GPU".to_owned(),
                bars: (0..bars).map(bar).collect(),
            }],
            ..BarChart::default()
        })
    }

    fn everything() -> Figure {
        let segment = |series, value| Segment {
            series,
            label: "bert · 8".to_owned(),
            short_label: "8".to_owned(),
            value,
        };
        let plan = PlanChart {
            series: Series::from_labels(["bert", "gpt2"]),
            devices: vec![DeviceBar {
                label: "GPU 0".to_owned(),
                replicas: vec![segment(0, 30.0), segment(1, 1.0)],
            }],
            hidden_devices: 3,
            ..PlanChart::default()
        };
        let curve = |stroke| Curve {
            series: 0,
            stroke,
            points: vec![(0.0, 1.0), (50.0, 40.0), (100.0, 90.0)],
        };
        let lines = LineChart {
            series: Series::from_labels(["bert"]),
            curves: [Stroke::Line, Stroke::LineAndDots, Stroke::Dots]
                .map(curve)
                .to_vec(),
            reference_lines: vec![ReferenceLine {
                x: 60.0,
                label: "SLO".to_owned(),
            }],
            ..LineChart::default()
        };
        Figure {
            title: "a & b".to_owned(),
            notes: vec!["seed 1".to_owned()],
            columns: 2,
            panels: vec![Panel::Plan(plan), bars(3), Panel::Lines(lines)],
        }
    }

    #[test]
    fn the_same_figure_has_the_same_bytes() {
        assert_eq!(everything().to_svg(), everything().to_svg());
    }

    #[test]
    fn labels_are_escaped_in_the_svg() {
        let svg = everything().to_svg();
        assert!(
            svg.contains("a &amp; b") && svg.contains("&lt;within&gt;"),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn bars_are_never_too_narrow_for_their_labels() {
        let width = |count| {
            let figure = Figure {
                panels: vec![bars(count)],
                ..Figure::default()
            };
            figure.paint().width
        };
        assert!(width(3) < width(200));
        assert!(width(200) >= 200.0 * 12.0);
    }

    #[test]
    fn a_figure_has_a_largest_size() {
        let figure = Figure {
            columns: 1,
            panels: vec![bars(5000); 100],
            ..Figure::default()
        };
        let canvas = figure.paint();
        assert!(canvas.width <= MAX_LENGTH + 2.0 * MARGIN && canvas.height <= MAX_LENGTH);
    }
}
