//! Axes with round numbers, and the position of a value on them.

use crate::{
    canvas::{Anchor, Canvas, Rect},
    palette::Rgb,
};

/// The size of a panel's title, in pixels.
pub(crate) const TITLE: f32 = 13.0;
/// The size of labels, in pixels.
pub(crate) const LABEL: f32 = 11.0;
/// The size of the numbers at an axis, in pixels.
pub(crate) const TICK: f32 = 10.0;

/// A scale from 0 to at least the largest value, with ticks at round numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// The distance of two ticks.
    step: f64,
    /// The value at the end.
    pub(crate) top: f64,
}

impl Scale {
    /// Creates a scale that ends at a round number.
    pub(crate) fn rounded(largest: f64) -> Self {
        let step = tick_step(largest);
        Self {
            step,
            top: (largest / step).ceil().max(1.0) * step,
        }
    }

    /// Creates a scale that ends at the value itself.
    pub(crate) fn exact(top: f64) -> Self {
        Self {
            step: tick_step(top),
            top: if top > 0.0 && top.is_finite() {
                top
            } else {
                1.0
            },
        }
    }

    fn ticks(self) -> impl Iterator<Item = f64> {
        // Without the tolerance, rounding may lose the last tick.
        let count = (self.top / self.step + 1e-6).floor() as u32;
        (0..=count).map(move |i| f64::from(i) * self.step)
    }

    /// Returns the position of a value: 0 at the start, 1 at the end. Values outside are drawn at the edge.
    pub(crate) fn fraction(self, value: f64) -> f32 {
        (value / self.top).clamp(0.0, 1.0) as f32
    }
}

/// Returns 1, 2 or 5 times a power of ten, about a fifth of the largest value.
fn tick_step(largest: f64) -> f64 {
    if !(largest > 0.0 && largest.is_finite()) {
        return 1.0;
    }
    let rough = largest / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Returns a tick's number without trailing zeros.
fn tick_text(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the width of the numbers and the label at the left of the area.
pub(crate) fn left_margin(canvas: &Canvas, scale: Scale) -> f32 {
    let widths = scale
        .ticks()
        .map(|tick| canvas.font.width(&tick_text(tick), TICK));
    widths.fold(0.0, f32::max) + 26.0
}

/// Draws the vertical axis: numbers, lines across the area, and the label, which reads upwards.
pub(crate) fn draw_vertical(canvas: &mut Canvas, area: Rect, scale: Scale, label: &str) {
    for tick in scale.ticks() {
        let y = area.bottom() - scale.fraction(tick) * area.height;
        canvas.line((area.x, y), (area.right(), y), Rgb::GRID, false);
        canvas.text(area.x - 5.0, y + 3.5, TICK, Anchor::End, tick_text(tick));
    }
    let left = area.x - left_margin(canvas, scale) + LABEL;
    let label = canvas.font.truncate(label, LABEL, area.height + 30.0);
    canvas.text_upwards(
        left,
        area.y + area.height / 2.0,
        LABEL,
        Anchor::Middle,
        &label,
    );
}

/// Draws the horizontal axis: lines through the area, and numbers and label below it.
pub(crate) fn draw_horizontal(canvas: &mut Canvas, area: Rect, scale: Scale, label: &str) {
    for tick in scale.ticks() {
        let x = area.x + scale.fraction(tick) * area.width;
        canvas.line((x, area.y), (x, area.bottom()), Rgb::GRID, false);
        canvas.text(
            x,
            area.bottom() + 14.0,
            TICK,
            Anchor::Middle,
            tick_text(tick),
        );
    }
    canvas.text(
        area.x + area.width / 2.0,
        area.bottom() + 29.0,
        LABEL,
        Anchor::Middle,
        label,
    );
}

/// Draws the lines of both axes.
pub(crate) fn draw_frame(canvas: &mut Canvas, area: Rect) {
    let corner = (area.x, area.bottom());
    canvas.line((area.x, area.y), corner, Rgb::AXIS, false);
    canvas.line(corner, (area.right(), area.bottom()), Rgb::AXIS, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers_and_reach_the_largest_value() {
        for (largest, step, top) in [
            (2165.0, 500.0, 2500.0),
            (1.0, 0.2, 1.0),
            (0.07, 0.02, 0.08),
            (100.0, 20.0, 100.0),
            (0.0, 1.0, 1.0),
            (f64::NAN, 1.0, 1.0),
        ] {
            let scale = Scale::rounded(largest);
            assert!(
                (scale.step - step).abs() < 1e-9 && (scale.top - top).abs() < 1e-9,
                "{largest}: {scale:?}"
            );
        }
    }

    #[test]
    fn every_tick_is_on_the_axis() {
        for top in [0.3, 0.7, 1.0, 9.9, 100.0, 1234.5] {
            let scale = Scale::exact(top);
            let last = scale.ticks().last().expect("zero is a tick");
            assert!(
                last <= top * (1.0 + 1e-9) && last > top - scale.step * (1.0 + 1e-6),
                "{top}: {last}"
            );
        }
    }
}
