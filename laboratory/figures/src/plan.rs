//! Who sits on which device: one bar per device, its replicas one after the other.

use crate::{
    axis::{self, LABEL, Scale, TICK},
    canvas::{Anchor, Canvas, Rect, Shape, Text},
    figure::Draw,
    palette::{Rgb, Series},
};

/// A plan: one bar per device, with a line at 100 %.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanChart {
    /// What it shows.
    pub title: String,
    /// What the length of a replica means, in percent of a device.
    pub value_axis: String,
    /// The models.
    pub series: Vec<Series>,
    /// From the top.
    pub devices: Vec<DeviceBar>,
    /// How many devices are not shown.
    pub left_out: usize,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceBar {
    /// Stands left of it.
    pub label: String,
    /// From the left.
    pub replicas: Vec<Segment>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Its model's place among the chart's series.
    pub series: usize,
    /// Stands in it where there is room.
    pub label: String,
    /// Stands in it where there is none for the label.
    pub short_label: String,
    /// In percent of the device.
    pub value: f64,
}

const ROW: f32 = 30.0;
const BAR: f32 = 22.0;

impl PlanChart {
    fn scale(&self) -> Scale {
        let used = self.devices.iter().map(|device| {
            let values = device.replicas.iter().map(|replica| replica.value);
            values.sum::<f64>()
        });
        Scale::until(used.fold(100.0, f64::max))
    }

    fn room_on_the_left(&self, canvas: &Canvas) -> f32 {
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

impl Draw for PlanChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn series(&self) -> &[Series] {
        &self.series
    }

    fn narrowest(&self, canvas: &Canvas) -> f32 {
        self.room_on_the_left(canvas) + 200.0
    }

    fn height(&self, _: &Canvas) -> f32 {
        let note = if self.left_out > 0 { 18.0 } else { 0.0 };
        self.rows_height() + 36.0 + note
    }

    fn draw(&self, canvas: &mut Canvas, room: Rect) {
        let left = self.room_on_the_left(canvas);
        let area = Rect {
            x: room.x + left,
            y: room.y,
            width: room.width - left - 14.0,
            height: self.rows_height(),
        };
        let scale = self.scale();
        axis::horizontal(canvas, area, scale, &self.value_axis);
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
                let (from, to) = (scale.share(before), scale.share(before + replica.value));
                before += replica.value;
                let place = Rect {
                    x: area.x + from * area.width,
                    y,
                    width: ((to - from) * area.width - 1.0).max(1.0),
                    height: BAR,
                };
                self.replica(canvas, replica, place);
            }
        }
        let full = area.x + scale.share(100.0) * area.width;
        canvas.line((full, area.y), (full, area.bottom()), Rgb::LIMIT, true);
        axis::frame(canvas, area);
        if self.left_out > 0 {
            let note = format!("and {} more devices", self.left_out);
            canvas.text(area.x, area.bottom() + 47.0, LABEL, Anchor::Start, note);
        }
    }
}

impl PlanChart {
    fn replica(&self, canvas: &mut Canvas, replica: &Segment, place: Rect) {
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
