//! A figure: title, notes, legend, and panels in a grid.

use std::{path::Path, str::FromStr};

use crate::{
    BarChart, LineChart, PlanChart, Series,
    axis::{LABEL, TITLE},
    canvas::{Anchor, Canvas, Rect},
    png, svg,
};

/// A picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Stands above everything.
    pub title: String,
    /// What to know before reading it, a line each.
    pub notes: Vec<String>,
    /// How many panels stand beside each other; 0 is 1.
    pub columns: usize,
    /// Row by row.
    pub panels: Vec<Panel>,
}

/// A chart of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Panel {
    /// Who sits where.
    Plan(PlanChart),
    /// Stacked bars.
    Bars(BarChart),
    /// Curves.
    Lines(LineChart),
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Sharp at every size.
    Svg,
    /// For where SVG is not shown.
    Png,
}

/// A file name that does not say how to write a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a file name that ends in .svg or .png")]
pub struct UnknownFormat;

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(file_name: &str) -> Result<Self, UnknownFormat> {
        let extension = Path::new(file_name)
            .extension()
            .and_then(|extension| extension.to_str());
        match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(UnknownFormat),
        }
    }
}

/// What a panel can do.
pub(crate) trait Draw {
    fn title(&self) -> &str;
    fn series(&self) -> &[Series];
    /// The least width at which nothing overlaps.
    fn narrowest(&self, canvas: &Canvas) -> f32;
    /// Without title and legend.
    fn height(&self, canvas: &Canvas) -> f32;
    fn draw(&self, canvas: &mut Canvas, room: Rect);
}

impl Panel {
    fn draw(&self) -> &dyn Draw {
        match self {
            Self::Plan(chart) => chart,
            Self::Bars(chart) => chart,
            Self::Lines(chart) => chart,
        }
    }
}

const WIDTH: f32 = 1000.0;
const MARGIN: f32 = 16.0;
const GAP: f32 = 24.0;
const HEADLINE: f32 = 16.0;
const LEGEND_LINE: f32 = 18.0;
const SWATCH: f32 = 11.0;
/// Pictures end here, whatever they should show: a PNG's memory is limited.
const LARGEST: f32 = 12_000.0;

impl Figure {
    /// Its bytes in a format.
    pub fn bytes(&self, format: Format) -> Vec<u8> {
        let canvas = self.paint();
        match format {
            Format::Svg => svg::document(&canvas).into_bytes(),
            Format::Png => png::image(&canvas),
        }
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        svg::document(&self.paint())
    }

    fn paint(&self) -> Canvas {
        let mut canvas = Canvas::new();
        let columns = self.columns.max(1);
        let narrowest = self
            .panels
            .iter()
            .map(|panel| panel.draw().narrowest(&canvas));
        let gaps = GAP * (columns - 1) as f32;
        let needed = narrowest.fold(0.0, f32::max) * columns as f32 + gaps;
        let inner = needed.clamp(WIDTH - 2.0 * MARGIN, LARGEST);
        canvas.width = inner + 2.0 * MARGIN;
        let mut y = self.head(&mut canvas);
        let width = (inner - gaps) / columns as f32;
        let mut explained: &[Series] = &[];
        for row in self.panels.chunks(columns) {
            let shared = shared_series(row);
            if let Some(series) = shared.filter(|series| *series != explained) {
                y += legend(&mut canvas, series, MARGIN, y, inner);
                explained = series;
            }
            let mut height: f32 = 0.0;
            for (i, panel) in row.iter().enumerate() {
                let room = Rect {
                    x: MARGIN + (width + GAP) * i as f32,
                    y,
                    width,
                    height: 0.0,
                };
                height = height.max(paint_panel(
                    &mut canvas,
                    panel.draw(),
                    room,
                    shared.is_none(),
                ));
            }
            y += height + GAP;
            if y > LARGEST {
                break;
            }
        }
        canvas.height = y.min(LARGEST);
        canvas
    }

    /// Title and notes; gives where they end.
    fn head(&self, canvas: &mut Canvas) -> f32 {
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

/// What the panels of a row show alike: their legend stands above them, unless it stood above the row before.
fn shared_series(row: &[Panel]) -> Option<&[Series]> {
    let mut all = row.iter().map(|panel| panel.draw().series());
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Paints title, legend and chart; gives their height.
fn paint_panel(canvas: &mut Canvas, panel: &dyn Draw, room: Rect, with_legend: bool) -> f32 {
    let mut y = room.y;
    if !panel.title().is_empty() {
        let title = canvas.font.cut(panel.title(), TITLE, room.width);
        canvas.text(room.x, y + TITLE, TITLE, Anchor::Start, title);
        y += TITLE + 10.0;
    }
    if with_legend {
        y += legend(canvas, panel.series(), room.x, y, room.width);
    }
    panel.draw(canvas, Rect { y, ..room });
    y + panel.height(canvas) - room.y
}

/// Paints names beside their colours, in as many lines as they need; gives their height.
fn legend(canvas: &mut Canvas, series: &[Series], left: f32, top: f32, width: f32) -> f32 {
    let (mut x, mut y) = (left, top);
    for series in series {
        let label = canvas.font.cut(&series.label, LABEL, width - SWATCH - 6.0);
        // Other fonts may be a little wider.
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
    use crate::{Bar, BarGroup, Curve, DeviceBar, Mark, Segment, Stroke};

    fn bars(bars: usize) -> Panel {
        let bar = |i| Bar {
            label: format!("policy {i}"),
            values: vec![300.0, 200.0],
        };
        Panel::Bars(BarChart {
            value_axis: "requests/s <within> the \"SLO\"".to_owned(),
            series: Series::of(["bert", "gpt2"]),
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
            series: Series::of(["bert", "gpt2"]),
            devices: vec![DeviceBar {
                label: "GPU 0".to_owned(),
                replicas: vec![segment(0, 30.0), segment(1, 1.0)],
            }],
            left_out: 3,
            ..PlanChart::default()
        };
        let curve = |stroke| Curve {
            series: 0,
            stroke,
            points: vec![(0.0, 1.0), (50.0, 40.0), (100.0, 90.0)],
        };
        let lines = LineChart {
            series: Series::of(["bert"]),
            curves: [Stroke::Line, Stroke::Dotted, Stroke::Dots]
                .map(curve)
                .to_vec(),
            marks: vec![Mark {
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
        for format in [Format::Svg, Format::Png] {
            assert_eq!(everything().bytes(format), everything().bytes(format));
        }
    }

    #[test]
    fn what_labels_say_cannot_break_the_svg() {
        let svg = everything().svg();
        assert!(
            svg.contains("a &amp; b") && svg.contains("&lt;within&gt;"),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_png_has_text_without_fonts_of_the_system() {
        let titled = |title: &str| Figure {
            title: title.to_owned(),
            ..Figure::default()
        };
        let png = titled("goodput").bytes(Format::Png);
        let pixmap = tiny_skia::Pixmap::decode_png(&png).expect("it is a PNG");
        let is_dark = |pixel: &&tiny_skia::PremultipliedColorU8| pixel.red() < 100;
        let dark = pixmap.pixels().iter().filter(is_dark).count();
        assert!((200..5000).contains(&dark), "{dark} dark pixels");
        assert_ne!(png, titled("latency").bytes(Format::Png));
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
    fn a_picture_has_a_largest_size() {
        let figure = Figure {
            columns: 1,
            panels: vec![bars(5000); 100],
            ..Figure::default()
        };
        let canvas = figure.paint();
        assert!(canvas.width <= LARGEST + 2.0 * MARGIN && canvas.height <= LARGEST);
    }

    #[test]
    fn a_file_name_says_how_a_figure_is_written() {
        assert_eq!("a/plan.svg".parse(), Ok(Format::Svg));
        assert_eq!("PLAN.PNG".parse(), Ok(Format::Png));
        for name in ["plan", "plan.pdf", ".svg", ""] {
            assert_eq!(name.parse::<Format>(), Err(UnknownFormat));
        }
    }
}
