//! Charts of stacked bars in groups.

use crate::{
    axis::{self, LABEL, Scale, TICK},
    canvas::{Anchor, Canvas, Rect},
    chart::Chart,
    palette::Series,
};

/// A chart of bars in groups, each a stack of the same series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// The text above the chart.
    pub title: String,
    /// The label of the vertical axis, with its unit.
    pub value_axis: String,
    /// The stacked series, from the bottom.
    pub series: Vec<Series>,
    /// The groups, from left to right.
    pub groups: Vec<BarGroup>,
    /// The end of the axis; `None` for the highest bar. Higher bars are cut, with their sum above them.
    pub top: Option<f64>,
}

/// A group of bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarGroup {
    /// The text below the group.
    pub label: String,
    /// The bars, from left to right.
    pub bars: Vec<Bar>,
}

/// A stacked bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// The text below the bar, which reads upwards.
    pub label: String,
    /// The values, one per series of the chart.
    pub values: Vec<f64>,
}

/// The height of the area, in pixels.
const HEIGHT: f32 = 230.0;
/// The least width of a bar with its gap, in pixels, at which labels do not overlap.
const MIN_SLOT: f32 = 12.0;
/// The largest width of a bar with its gap, in pixels.
const MAX_SLOT: f32 = 46.0;
/// The height of the sums above bars that are cut, in pixels.
const HEADROOM: f32 = 34.0;
/// The gap between two groups, in bars.
const GAP: f32 = 1.0;

impl BarChart {
    fn scale(&self) -> Scale {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let highest = bars.map(|bar| bar.values.iter().sum()).fold(0.0, f64::max);
        self.top
            .map_or_else(|| Scale::rounded(highest), Scale::rounded)
    }

    /// Returns the number of bars, including the gaps between groups.
    fn slots(&self) -> f32 {
        let bars: usize = self.groups.iter().map(|group| group.bars.len()).sum();
        bars as f32 + GAP * self.groups.len() as f32
    }

    /// Returns the height above the area.
    fn headroom(&self) -> f32 {
        let top = self.scale().top;
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let is_cut = bars
            .map(|bar| bar.values.iter().sum::<f64>())
            .any(|sum| sum > top);
        if is_cut { HEADROOM } else { 0.0 }
    }

    /// Returns the height of the labels below the area.
    fn label_height(&self, canvas: &Canvas) -> f32 {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let widths = bars.map(|bar| canvas.font.width(&bar.label, TICK));
        widths.fold(0.0, f32::max) * 1.05 + 8.0
    }
}

impl Chart for BarChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn series(&self) -> &[Series] {
        &self.series
    }

    fn min_width(&self, canvas: &Canvas) -> f32 {
        axis::left_margin(canvas, self.scale()) + self.slots() * MIN_SLOT
    }

    fn height(&self, canvas: &Canvas) -> f32 {
        self.headroom() + HEIGHT + self.label_height(canvas) + 20.0
    }

    fn draw(&self, canvas: &mut Canvas, bounds: Rect) {
        let scale = self.scale();
        let left = axis::left_margin(canvas, scale);
        let slot = ((bounds.width - left) / self.slots().max(1.0)).min(MAX_SLOT);
        let area = Rect {
            x: bounds.x + left,
            y: bounds.y + self.headroom(),
            width: (slot * self.slots()).max(MIN_SLOT),
            height: HEIGHT,
        };
        axis::draw_vertical(canvas, area, scale, &self.value_axis);
        let below = area.bottom() + self.label_height(canvas);
        let mut stacked = vec![Vec::new(); self.series.len()];
        let mut x = area.x + slot * GAP / 2.0;
        for group in &self.groups {
            let middle = x + slot * group.bars.len() as f32 / 2.0;
            canvas.text(
                middle,
                below + 12.0,
                LABEL,
                Anchor::Middle,
                group.label.as_str(),
            );
            for bar in &group.bars {
                let mut sum = 0.0;
                for (areas, value) in stacked.iter_mut().zip(&bar.values) {
                    let (from, to) = (scale.fraction(sum), scale.fraction(sum + value));
                    sum += value;
                    if to > from {
                        areas.push(Rect {
                            x: x + slot * 0.08,
                            y: area.bottom() - to * area.height,
                            width: slot * 0.84,
                            height: (to - from) * area.height,
                        });
                    }
                }
                let (x_label, y_label) = (x + slot / 2.0 + TICK * 0.35, area.bottom() + 5.0);
                canvas.text_upwards(x_label, y_label, TICK, Anchor::End, &bar.label);
                if sum > scale.top {
                    canvas.text_upwards(
                        x_label,
                        area.y - 4.0,
                        TICK,
                        Anchor::Start,
                        &format!("{sum:.0}"),
                    );
                }
                x += slot;
            }
            x += slot * GAP;
        }
        for (series, areas) in self.series.iter().zip(stacked) {
            canvas.areas(series.colour, areas);
        }
        axis::draw_frame(canvas, area);
    }
}
