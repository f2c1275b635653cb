//! The interface of a figure's charts.

use crate::{
    Series,
    canvas::{Canvas, Rect},
};

/// A chart in a panel of a figure.
pub(crate) trait Chart {
    /// Returns the text above the chart; empty for none.
    fn title(&self) -> &str;
    /// Returns the series of the legend.
    fn series(&self) -> &[Series];
    /// Returns the least width at which nothing overlaps.
    fn min_width(&self, canvas: &Canvas) -> f32;
    /// Returns the height without title and legend.
    fn height(&self, canvas: &Canvas) -> f32;
    /// Paints the chart from the upper left corner of `bounds`, in its width.
    fn draw(&self, canvas: &mut Canvas, bounds: Rect);
}
