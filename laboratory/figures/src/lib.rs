//! Figures of plans and simulated runs, as SVG and PNG.
//!
//! A [`Figure`] is a grid of panels, each a [`PlanChart`], a [`BarChart`] or a [`LineChart`]. [`plans`] and [`runs`] create the charts of
//! the thesis from the reports of planner and simulator. The crate is pure, and equal data gives equal bytes: the font is embedded in the
//! program, so that a PNG has text on machines without fonts. An SVG names the same font, and others of its width for viewers without it.

mod axis;
mod bar_chart;
mod canvas;
mod chart;
mod figure;
mod font;
mod line_chart;
mod palette;
mod plan_chart;
pub mod plans;
mod png;
pub mod runs;
mod svg;

pub use bar_chart::{Bar, BarChart, BarGroup};
pub use figure::{Figure, Format, Panel, UnknownFormat};
pub use line_chart::{Curve, LineChart, ReferenceLine, Stroke};
pub use palette::{Colour, Series};
pub use plan_chart::{DeviceBar, PlanChart, Segment};
