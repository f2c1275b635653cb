//! Charts of plans: one bar per device, with its replicas as segments.

use crate::{
    axis::{self, LABEL, Scale, TICK},
    canvas::{Anchor, Canvas, Rect, Shape, Text},
    chart::Chart,
    palette::{Rgb, Series},
};

/// A chart of a plan: one bar per device, with a line at 100 %.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanChart {
    /// The text above the chart.
    pub title: String,
    /// The label of the horizontal axis: the quantity that is the length of a replica, in percent of a device.
    pub value_axis: String,
    /// The series of the legend, which are the models.
    pub series: Vec<Series>,
    /// The devices, from the top.
    pub devices: Vec<DeviceBar>,
    /// The number of devices that are not shown.
    pub hidden_devices: usize,
}

/// The bar of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceBar {
    /// The text at the left of the bar.
    pub label: String,
    /// The replicas, from the left.
    pub replicas: Vec<Segment>,
}

/// The segment of a replica in its device's bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The index of the model's series in the chart.
    pub series: usize,
    /// The text in the segment, if it fits.
    pub label: String,
    /// The text in the segment if the label does not fit.
    pub short_label: String,
    /// The length of the segment, in percent of the device.
    pub value: f64,
}

/// The height of a device's row, in pixels.
const ROW: f32 = 30.0;
/// The height of a bar, in pixels.
const BAR: f32 = 22.0;

impl PlanChart {
    fn scale(&self) -> Scale {
        let used = self.devices.iter().map(|device| {
            let values = device.replicas.iter().map(|replica| replica.value);
            values.sum::<f64>()
        });
        Scale::exact(used.fold(100.0, f64::max))
    }

    fn left_margin(&self, canvas: &Canvas) -> f32 {
        let widths = self
            .devices
            .iter()
            .map(|device| canvas.font.width(&device.label, LABEL));
        widths.fold(0.0, f32::max) * 1.05 + 8.0
    }

    fn rows_height(&self) -> f32 {
        ROW * self.devices.len().max(1) as f32
    }
}

impl Chart for PlanChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn series(&self) -> &[Series] {
        &self.series
    }

    fn min_width(&self, canvas: &Canvas) -> f32 {
        self.left_margin(canvas) + 200.0
    }

    fn height(&self, _: &Canvas) -> f32 {
        let note = if self.hidden_devices > 0 { 18.0 } else { 0.0 };
        self.rows_height() + 36.0 + note
    }

    fn draw(&self, canvas: &mut Canvas, bounds: Rect) {
        let left = self.left_margin(canvas);
        let area = Rect {
            x: bounds.x + left,
            y: bounds.y,
            width: bounds.width - left - 14.0,
            height: self.rows_height(),
        };
        let scale = self.scale();
        axis::draw_horizontal(canvas, area, scale, &self.value_axis);
        for (i, device) in self.devices.iter().enumerate() {
            let y = area.y + ROW * i as f32 + (ROW - BAR) / 2.0;
            canvas.text(
                area.x - 6.0,
                y + BAR / 2.0 + 4.0,
                LABEL,
                Anchor::End,
                device.label.as_str(),
            );
            let mut before = 0.0;
            for replica in &device.replicas {
                let (from, to) = (
                    scale.fraction(before),
                    scale.fraction(before + replica.value),
                );
                before += replica.value;
                let place = Rect {
                    x: area.x + from * area.width,
                    y,
                    width: ((to - from) * area.width - 1.0).max(1.0),
                    height: BAR,
                };
                self.draw_replica(canvas, replica, place);
            }
        }
        let full = area.x + scale.fraction(100.0) * area.width;
        canvas.line((full, area.y), (full, area.bottom()), Rgb::LIMIT, true);
        axis::draw_frame(canvas, area);
        if self.hidden_devices > 0 {
            let note = format!("and {} more devices", self.hidden_devices);
            canvas.text(area.x, area.bottom() + 47.0, LABEL, Anchor::Start, note);
        }
    }
}

impl PlanChart {
    fn draw_replica(&self, canvas: &mut Canvas, replica: &Segment, place: Rect) {
        let colour = self.series[replica.series].colour;
        let hint = format!("{}, {:.1} %", replica.label, replica.value);
        canvas.area_with_hint(colour, place, &hint);
        let fits = |label: &&String| canvas.font.width(label, TICK) * 1.08 + 4.0 <= place.width;
        let label = [&replica.label, &replica.short_label]
            .into_iter()
            .find(fits);
        if let Some(label) = label {
            canvas.shapes.push(Shape::Text(Text {
                x: place.x + place.width / 2.0,
                y: place.y + BAR / 2.0 + 3.5,
                size: TICK,
                anchor: Anchor::Middle,
                upwards: false,
                colour: colour.rgb().contrasting(),
                letters: label.clone(),
            }));
        }
    }
}
