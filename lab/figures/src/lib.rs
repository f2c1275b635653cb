//! Figures of plans and simulated runs, as SVG.
//!
//! A [`Figure`] is a grid of panels, each a [`PlanChart`], a [`BarChart`] or a [`LineChart`]. [`plans`] and [`runs`] create the charts of
//! the thesis from the reports of planner and simulator. The crate is pure, and equal data gives equal bytes: texts are measured with a font that is embedded
//! in the program. An SVG names the same font, and others of its width for viewers without it.

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
pub mod runs;
mod svg;

pub use bar_chart::{Bar, BarChart, BarGroup};
pub use figure::{Figure, Panel};
pub use line_chart::{Curve, LineChart, ReferenceLine, Stroke};
pub use palette::{Colour, Series};
pub use plan_chart::{DeviceBar, PlanChart, Segment};
