//! Bars in groups, each a stack of series.

use crate::{
    axis::{self, LABEL, Scale, TICK},
    canvas::{Anchor, Canvas, Rect},
    figure::Draw,
    palette::Series,
};

/// Bars in groups, each a stack of the same series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// What is counted, with its unit.
    pub value_axis: String,
    /// What is stacked, from the bottom.
    pub series: Vec<Series>,
    /// From left to right.
    pub groups: Vec<BarGroup>,
    /// Where the axis ends; without it at the highest bar. Higher bars are cut, and their sum stands above them.
    pub top: Option<f64>,
}

/// Bars that stand together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarGroup {
    /// Stands below them.
    pub label: String,
    /// From left to right.
    pub bars: Vec<Bar>,
}

/// A stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Stands below it, reading upwards.
    pub label: String,
    /// One per series, in the chart's order.
    pub values: Vec<f64>,
}

/// How high the tallest bar can be.
const HEIGHT: f32 = 230.0;
/// What a bar and the gap beside it take at least, so that labels do not overlap.
const NARROWEST: f32 = 12.0;
const WIDEST: f32 = 46.0;
/// For the sums of bars that are cut.
const HEADROOM: f32 = 34.0;
/// Between two groups, in bars.
const GAP: f32 = 1.0;

impl BarChart {
    fn scale(&self) -> Scale {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let highest = bars.map(|bar| bar.values.iter().sum()).fold(0.0, f64::max);
        self.top
            .map_or_else(|| Scale::rounded(highest), Scale::rounded)
    }

    /// How many bars fit beside each other, gaps between groups included.
    fn slots(&self) -> f32 {
        let bars: usize = self.groups.iter().map(|group| group.bars.len()).sum();
        bars as f32 + GAP * self.groups.len() as f32
    }

    /// How much stands above the bars.
    fn headroom(&self) -> f32 {
        let top = self.scale().top;
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let is_cut = bars
            .map(|bar| bar.values.iter().sum::<f64>())
            .any(|sum| sum > top);
        if is_cut { HEADROOM } else { 0.0 }
    }

    fn room_for_labels(&self, canvas: &Canvas) -> f32 {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let widths = bars.map(|bar| canvas.font.width(&bar.label, TICK));
        widths.fold(0.0, f32::max) * 1.05 + 8.0
    }
}

impl Draw for BarChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn series(&self) -> &[Series] {
        &self.series
    }

    fn narrowest(&self, canvas: &Canvas) -> f32 {
        axis::room_on_the_left(canvas, self.scale()) + self.slots() * NARROWEST
    }

    fn height(&self, canvas: &Canvas) -> f32 {
        self.headroom() + HEIGHT + self.room_for_labels(canvas) + 20.0
    }

    fn draw(&self, canvas: &mut Canvas, room: Rect) {
        let scale = self.scale();
        let left = axis::room_on_the_left(canvas, scale);
        let slot = ((room.width - left) / self.slots().max(1.0)).min(WIDEST);
        let area = Rect {
            x: room.x + left,
            y: room.y + self.headroom(),
            width: (slot * self.slots()).max(NARROWEST),
            height: HEIGHT,
        };
        axis::vertical(canvas, area, scale, &self.value_axis);
        let below = area.bottom() + self.room_for_labels(canvas);
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
                    let (from, to) = (scale.share(sum), scale.share(sum + value));
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
        axis::frame(canvas, area);
    }
}
