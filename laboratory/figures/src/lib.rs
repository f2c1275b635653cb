//! Pictures of plans and runs: plain data to charts, charts to SVG and PNG.
//!
//! A [`Figure`] is a grid of panels, each a [`PlanChart`], a [`BarChart`] or a [`LineChart`]. [`plans`] and [`runs`] make the charts
//! that the thesis has of what planner and simulator report. Pure, and the same data gives the same bytes: the font is in the
//! program, so that a PNG has text on machines without fonts; an SVG names the same font and, where the viewer lacks it, others of
//! its width.

mod axis;
mod bars;
mod canvas;
mod figure;
mod font;
mod lines;
mod palette;
mod plan;
pub mod plans;
mod png;
pub mod runs;
mod svg;

pub use bars::{Bar, BarChart, BarGroup};
pub use figure::{Figure, Format, Panel, UnknownFormat};
pub use lines::{Curve, LineChart, Mark, Stroke};
pub use palette::{Colour, Series};
pub use plan::{DeviceBar, PlanChart, Segment};
