//! The measurements of devices and models that iGniter requires, and the coefficients fitted to them.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, ModelId};
use packhorse_contention::{
    InssDevice, InssModel, LocalRegression, RegressionError, RegressionPoint,
};
use serde::Deserialize;

use super::least_squares::{self, fit, fit_line};

/// The smallest fraction of a measured time that counts as computing, where the measured copying and launching take all of it.
const LEAST_RUNNING: f64 = 0.05;

/// The coefficients of iGniter's latency model for kinds of devices and models on them. They are fitted to measurements by least squares,
/// as in the paper and its published code.
///
/// The measurements are a CSV file with the header `device_kind,model,quantity,batch_size,compute_share_pct,colocated,value` and one
/// value per row. Cells that do not apply are empty. The quantities of a device, which have no model, are:
///
/// | quantity | meaning |
/// |---|---|
/// | `max_frequency_mhz`, `power_cap_w` | the values of the data sheet |
/// | `idle_power_w` | the power draw of the idle device |
/// | `share_unit_pct` | the smallest step of compute shares |
/// | `bus_bytes_per_ms` | the bandwidth to and from the device |
/// | `power_w`, `frequency_mhz`, `kernel_gap_ms` | the power draw, the clock and the time between two kernels with `colocated` equal workloads |
///
/// The quantities of a model on a device are:
///
/// | quantity | meaning |
/// |---|---|
/// | `input_bytes`, `output_bytes` | the bytes of one request |
/// | `kernels`, `schedule_ms` | the number of kernels of one batch, and their scheduling delay when the model is alone |
/// | `latency_ms`, `draw_w`, `clock_mhz` | the latency on the device without copying, the power draw and the clock at `batch_size` and `compute_share_pct` when the model is alone |
/// | `l2_pct` | the use of the second-level cache at `batch_size` and `compute_share_pct` |
/// | `solo_ms`, `pair_ms`, `pair_clock_mhz`, `pair_l2_pct` | the active time alone and beside a second replica, and the clock and the neighbour's cache use in the second case |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IgniterCoefficients {
    hardware: BTreeMap<DeviceKind, Hardware>,
    models: BTreeMap<(ModelId, DeviceKind), ModelCoefficients>,
}

/// The coefficients of a kind of device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hardware {
    /// The highest clock, in MHz.
    max_frequency: f64,
    /// The power limit, in W.
    power_cap: f64,
    /// The power draw of the idle device, in W.
    pub(super) idle_power: f64,
    /// The smallest step of compute shares, in percent.
    pub(super) share_unit: f64,
    /// The bandwidth of the bus, in bytes per ms.
    pub(super) bus: f64,
    /// The change of the clock per power draw above the cap, in MHz per W.
    throttling: f64,
    /// The delay per kernel in ms: its slope by the number of workloads, and its intercept.
    pub(super) schedule: [f64; 2],
}

impl Hardware {
    /// Returns the factor by which batches take longer at the clock that a power draw in W permits.
    pub(super) fn slowdown(&self, power: f64) -> f64 {
        let above = (power - self.power_cap).max(0.0);
        // The linear extrapolation may reach zero, but a real clock does not.
        let frequency =
            (self.max_frequency + self.throttling * above).max(0.1 * self.max_frequency);
        self.max_frequency / frequency
    }
}

/// The coefficients of a model on a kind of device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelCoefficients {
    /// The bytes of a request's input.
    pub(super) input_bytes: f64,
    /// The bytes of a request's output.
    pub(super) output_bytes: f64,
    /// The number of kernels of a batch.
    pub(super) kernels: f64,
    /// The scheduling delay of a batch alone, `t_sch`, in ms.
    pub(super) schedule: f64,
    /// The coefficients `k₁` to `k₅` of the active time.
    pub(super) active: [f64; 5],
    /// The power draw in W: slope by processing ability in requests/s, and intercept.
    pub(super) power: [f64; 2],
    /// The cache use in percent: slope by processing ability in requests/s, and intercept.
    pub(super) cache: [f64; 2],
    /// The cache use in percent as InSS models it: slope by percent of share, and intercept.
    cache_by_share: [f64; 2],
    /// The sensitivity to the neighbours' cache use, `α_cache`.
    pub(super) cache_sensitivity: f64,
}

/// The error for measurements that give no coefficients.
#[derive(Debug, thiserror::Error)]
pub enum CoefficientsError {
    /// A line of the CSV file is not valid.
    #[error("line {line}: {problem}")]
    Csv {
        /// The number of the line; the header is line 1.
        line: u64,
        /// The reason why the line is not valid.
        problem: String,
    },
    /// A quantity is missing or has too few measurements to be fitted.
    #[error("{subject}: {quantity} is missing or has too few measurements")]
    Missing {
        /// The kind of device, or the model and the kind.
        subject: String,
        /// The name of the quantity.
        quantity: &'static str,
    },
}

#[derive(Deserialize)]
struct Row {
    device_kind: String,
    model: Option<String>,
    quantity: String,
    batch_size: Option<u32>,
    compute_share_pct: Option<f64>,
    colocated: Option<u32>,
    value: f64,
}

/// The measurements of a kind of device, or of a model on one.
#[derive(Default)]
struct Measurements {
    /// The kind of device, or the model and the kind.
    subject: String,
    rows: Vec<Row>,
}

impl IgniterCoefficients {
    /// Reads measurements and fits the coefficients.
    ///
    /// # Errors
    /// If a line is not valid, or a quantity is missing.
    pub fn from_csv(text: &str) -> Result<Self, CoefficientsError> {
        let mut devices: BTreeMap<DeviceKind, Measurements> = BTreeMap::new();
        let mut models: BTreeMap<(ModelId, DeviceKind), Measurements> = BTreeMap::new();
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        for (number, record) in reader.deserialize::<Row>().enumerate() {
            let line = number as u64 + 2;
            let invalid = |problem| CoefficientsError::Csv { line, problem };
            let row = record.map_err(|e| invalid(e.to_string()))?;
            if !row.value.is_finite() || row.value < 0.0 {
                return Err(invalid(format!(
                    "value must be a finite number of at least 0, not {}",
                    row.value
                )));
            }
            let kind: DeviceKind = row
                .device_kind
                .parse()
                .map_err(|e: packhorse_cluster::IdError| invalid(e.to_string()))?;
            let (measurements, subject) = match &row.model {
                None => (devices.entry(kind.clone()).or_default(), kind.to_string()),
                Some(model) => {
                    let model: ModelId = model
                        .parse()
                        .map_err(|e: packhorse_cluster::IdError| invalid(e.to_string()))?;
                    let subject = format!("{model} on {kind}");
                    (models.entry((model, kind)).or_default(), subject)
                }
            };
            measurements.subject = subject;
            measurements.rows.push(row);
        }
        let mut coefficients = Self::default();
        for (kind, measurements) in devices {
            let hardware = measurements.fit_hardware()?;
            coefficients.hardware.insert(kind, hardware);
        }
        for (key, measurements) in models {
            let Some(hardware) = coefficients.hardware.get(&key.1) else {
                return Err(CoefficientsError::Missing {
                    subject: key.1.to_string(),
                    quantity: "max_frequency_mhz",
                });
            };
            let model = measurements.fit_model(hardware)?;
            coefficients.models.insert(key, model);
        }
        Ok(coefficients)
    }

    /// Returns the coefficients of a kind of device and of a model on it, if both are known.
    pub(super) fn workload(
        &self,
        model: &ModelId,
        kind: &DeviceKind,
    ) -> Option<(&Hardware, &ModelCoefficients)> {
        let fitted = self.models.get(&(model.clone(), kind.clone()))?;
        Some((self.hardware.get(kind)?, fitted))
    }

    /// Returns the coefficients of InSS' model, which needs the same measurements, if both are known. `measured` are times of batches
    /// alone, copying and launching included.
    ///
    /// # Errors
    /// If there is no measured time.
    pub(crate) fn inss(
        &self,
        model: &ModelId,
        kind: &DeviceKind,
        measured: &[RegressionPoint],
    ) -> Option<Result<(InssDevice, InssModel), RegressionError>> {
        let (hardware, fitted) = self.workload(model, kind)?;
        let device = InssDevice {
            bus_bytes_per_second: 1e3 * hardware.bus,
            launch: hardware.schedule.map(|ms| 1e-3 * ms),
        };
        let copied = fitted.input_bytes + fitted.output_bytes;
        let fixed = |batch: u32| {
            copied * f64::from(batch) / device.bus_bytes_per_second + 1e-3 * fitted.schedule
        };
        let running = |point: &RegressionPoint| RegressionPoint {
            seconds: (point.seconds - fixed(point.batch)).max(LEAST_RUNNING * point.seconds),
            ..*point
        };
        let running = LocalRegression::new(measured.iter().map(running).collect());
        let of_model = |running| InssModel {
            copied_bytes: copied,
            kernels: fitted.kernels,
            launch: 1e-3 * fitted.schedule / fitted.kernels.max(1.0),
            running,
            cache: fitted.cache_by_share,
            cache_sensitivity: fitted.cache_sensitivity,
        };
        Some(running.map(|running| (device, of_model(running))))
    }
}

impl Measurements {
    fn missing(&self, quantity: &'static str) -> CoefficientsError {
        CoefficientsError::Missing {
            subject: self.subject.clone(),
            quantity,
        }
    }

    fn rows_of<'a>(&'a self, quantity: &'static str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.quantity == quantity)
    }

    /// Returns the first value of a quantity.
    fn value(&self, quantity: &'static str) -> Result<f64, CoefficientsError> {
        let row = self.rows_of(quantity).next();
        row.map(|row| row.value)
            .ok_or_else(|| self.missing(quantity))
    }

    /// Returns the first value of a quantity that is used as a divisor and must be above 0.
    fn positive_value(&self, quantity: &'static str) -> Result<f64, CoefficientsError> {
        let value = self.value(quantity)?;
        if value > 0.0 {
            Ok(value)
        } else {
            Err(self.missing(quantity))
        }
    }

    /// Returns the values of a quantity by the number of equal workloads.
    fn by_colocated(&self, quantity: &'static str) -> BTreeMap<u32, f64> {
        let rows = self.rows_of(quantity);
        rows.filter_map(|row| Some((row.colocated?, row.value)))
            .collect()
    }

    /// Returns the batch size, the share and the value of each measurement of a quantity.
    fn points(&self, quantity: &'static str) -> Vec<(f64, f64, f64)> {
        self.rows_of(quantity)
            .filter_map(|row| {
                Some((
                    f64::from(row.batch_size?),
                    row.compute_share_pct?,
                    row.value,
                ))
            })
            .collect()
    }

    /// Returns the value of a quantity at a batch size and a share.
    fn value_at(
        &self,
        quantity: &'static str,
        batch: f64,
        share: f64,
    ) -> Result<f64, CoefficientsError> {
        let found = self
            .points(quantity)
            .into_iter()
            .find(|&(b, r, _)| b.to_bits() == batch.to_bits() && r.to_bits() == share.to_bits());
        found
            .map(|(.., value)| value)
            .ok_or_else(|| self.missing(quantity))
    }

    /// Fits the coefficients of a kind of device.
    fn fit_hardware(&self) -> Result<Hardware, CoefficientsError> {
        let (max_frequency, power_cap) = (
            self.positive_value("max_frequency_mhz")?,
            self.value("power_cap_w")?,
        );
        let frequency = self.by_colocated("frequency_mhz");
        let at_full = |count: &u32| frequency.get(count).is_none_or(|f| *f >= max_frequency);
        let drawn: Vec<(u32, f64)> = self.by_colocated("power_w").into_iter().collect();
        let uncapped: Vec<f64> = drawn
            .iter()
            .filter(|(count, _)| at_full(count))
            .map(|(_, power)| *power)
            .collect();
        let (Some(first), Some(last)) = (uncapped.first(), uncapped.last()) else {
            return Err(self.missing("power_w"));
        };
        // A capped reading does not show the uncapped power draw, which is extrapolated by the mean step of the other readings.
        let step = (last - first) / (uncapped.len().max(2) - 1) as f64;
        let throttled = drawn.iter().filter(|(count, _)| !at_full(count));
        let points: Vec<([f64; 1], f64)> = throttled
            .enumerate()
            .map(|(beyond, (count, _))| {
                let extrapolated = last + step * (beyond + 1) as f64;
                ([extrapolated - power_cap], frequency[count] - max_frequency)
            })
            .collect();
        // A device that did not throttle in any measurement is assumed not to throttle.
        let throttling = fit(&points).map_or(0.0, |[slope]| slope);
        // Gaps grow with a lower clock. A single workload does not wait for others, so that its gap does not count.
        let gaps = self.by_colocated("kernel_gap_ms").into_iter();
        let shared = gaps.filter(|(count, _)| *count > 1).map(|(count, gap)| {
            let clock = frequency.get(&count).map_or(1.0, |f| f / max_frequency);
            (f64::from(count), gap * clock)
        });
        Ok(Hardware {
            max_frequency,
            power_cap,
            idle_power: self.value("idle_power_w")?,
            share_unit: self.positive_value("share_unit_pct")?,
            bus: self.positive_value("bus_bytes_per_ms")?,
            throttling,
            schedule: fit_line(shared).ok_or_else(|| self.missing("kernel_gap_ms"))?,
        })
    }

    /// Fits the coefficients of a model.
    fn fit_model(&self, hardware: &Hardware) -> Result<ModelCoefficients, CoefficientsError> {
        let schedule = self.value("schedule_ms")?;
        let latency = self.points("latency_ms");
        let mut active = Vec::new();
        let mut power = Vec::new();
        for &(batch, share, latency) in &latency {
            let clock = self.value_at("clock_mhz", batch, share)?;
            let time = latency * clock / hardware.max_frequency - schedule;
            active.push((batch, share, time));
            // The power draw of a throttled device is the cap and is not used.
            if clock >= hardware.max_frequency {
                let drawn = self.value_at("draw_w", batch, share)? - hardware.idle_power;
                power.push((1e3 * batch / time, drawn));
            }
        }
        let mut cache = Vec::new();
        for (batch, share, used) in self.points("l2_pct") {
            let time = self.value_at("latency_ms", batch, share)? - schedule;
            cache.push((1e3 * batch / time, used));
        }
        let by_share = self.points("l2_pct").into_iter();
        let by_share = by_share.map(|(_, share, used)| (share, used));
        let pair_clock = self.value("pair_clock_mhz")? / hardware.max_frequency;
        let slower = self.value("pair_ms")? * pair_clock / self.positive_value("solo_ms")? - 1.0;
        Ok(ModelCoefficients {
            input_bytes: self.value("input_bytes")?,
            output_bytes: self.value("output_bytes")?,
            kernels: self.value("kernels")?,
            schedule,
            active: fit_active(&active).ok_or_else(|| self.missing("latency_ms"))?,
            power: fit_line(power.into_iter()).ok_or_else(|| self.missing("draw_w"))?,
            cache: fit_line(cache.into_iter()).ok_or_else(|| self.missing("l2_pct"))?,
            cache_by_share: fit_line(by_share).ok_or_else(|| self.missing("l2_pct"))?,
            cache_sensitivity: slower / self.positive_value("pair_l2_pct")?,
        })
    }
}

/// Fits the active time `t = (k₁b² + k₂b + k₃) / (r + k₄) + k₅` to points `(b, r, t)`. All coefficients but `k₄` are linear; `k₄` is
/// found by a coarse search and a golden-section search.
fn fit_active(points: &[(f64, f64, f64)]) -> Option<[f64; 5]> {
    let least_share = points
        .iter()
        .map(|point| point.1)
        .fold(f64::INFINITY, f64::min);
    if points.len() < 5 {
        return None;
    }
    let with = |k4: f64| {
        let row = |&(b, r, t): &(f64, f64, f64)| {
            let s = r + k4;
            ([b * b / s, b / s, 1.0 / s, 1.0], t)
        };
        let rows: Vec<([f64; 4], f64)> = points.iter().map(row).collect();
        let solution = fit(&rows)?;
        Some((least_squares::error(&rows, &solution), solution))
    };
    let error = |k4: f64| with(k4).map_or(f64::INFINITY, |(error, _)| error);
    // `r + k₄` must stay above 0: the search begins above minus the smallest share.
    let step = 0.01;
    let coarse = (0..3_000).map(|i| f64::from(i) * step - 0.5 * least_share);
    let best = coarse.min_by(|a, b| error(*a).total_cmp(&error(*b)))?;
    let golden = 0.618_033_988_749_895;
    let (mut low, mut high) = (best - 2.0 * step, best + 2.0 * step);
    for _ in 0..60 {
        let (left, right) = (high - golden * (high - low), low + golden * (high - low));
        if error(left) < error(right) {
            high = right;
        } else {
            low = left;
        }
    }
    let k4 = f64::midpoint(low, high);
    let (_, [k1, k2, k3, k5]) = with(k4)?;
    Some([k1, k2, k3, k4, k5])
}
