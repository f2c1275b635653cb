//! What iGniter knows of devices and models: measurements, and the coefficients fitted to them.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, ModelId};
use serde::Deserialize;

use super::least_squares::{self, fit, line};

/// The coefficients of the latency model, per kind of device and model. Fitted to measurements by least squares, as the paper
/// and its published code do.
///
/// The measurements are a CSV file with the header `device_kind,model,quantity,batch_size,compute_share_pct,colocated,value`, one
/// value a row; cells that do not apply are empty. Of a device (no model):
///
/// | quantity | |
/// |---|---|
/// | `max_frequency_mhz`, `power_cap_w`, `idle_power_w` | its data sheet, and what it draws when idle |
/// | `share_unit_pct` | the step in which shares are given |
/// | `bus_bytes_per_ms` | to and from the device |
/// | `power_w`, `frequency_mhz`, `kernel_gap_ms` | with `colocated` equal workloads: what it draws, its clock, the time between two kernels |
///
/// Of a model on it:
///
/// | quantity | |
/// |---|---|
/// | `input_bytes`, `output_bytes` | of one request |
/// | `kernels`, `schedule_ms` | of one batch: how many, and the delay by itself |
/// | `latency_ms`, `draw_w`, `clock_mhz` | at `batch_size` and `compute_share_pct`, by itself: on the device, without copying |
/// | `l2_pct` | use of the second-level cache at `batch_size` and `compute_share_pct` |
/// | `solo_ms`, `pair_ms`, `pair_clock_mhz`, `pair_l2_pct` | active time by itself and beside itself, the clock and the neighbour's cache use then |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IgniterCoefficients {
    hardware: BTreeMap<DeviceKind, Hardware>,
    models: BTreeMap<(ModelId, DeviceKind), ModelCoefficients>,
}

/// Times in ms, frequencies in MHz, power in W, shares and cache use in percent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hardware {
    max_frequency: f64,
    power_cap: f64,
    pub(super) idle_power: f64,
    pub(super) share_unit: f64,
    /// Bytes per ms.
    pub(super) bus: f64,
    /// MHz per W above the cap.
    throttling: f64,
    /// Delay per kernel: per workload, and constant.
    pub(super) schedule: [f64; 2],
}

impl Hardware {
    /// How much longer everything takes at the frequency that a power draw leaves.
    pub(super) fn slowdown(&self, power: f64) -> f64 {
        let above = (power - self.power_cap).max(0.0);
        // A clock never stands still, however far a straight line is continued.
        let frequency =
            (self.max_frequency + self.throttling * above).max(0.1 * self.max_frequency);
        self.max_frequency / frequency
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelCoefficients {
    pub(super) input_bytes: f64,
    pub(super) output_bytes: f64,
    pub(super) kernels: f64,
    pub(super) schedule: f64,
    /// `k₁` to `k₅`.
    pub(super) active: [f64; 5],
    /// By processing ability, in requests/s: slope and intercept.
    pub(super) power: [f64; 2],
    pub(super) cache: [f64; 2],
    /// `α_cache`
    pub(super) cache_sensitivity: f64,
}

/// Why measurements are no coefficients.
#[derive(Debug, thiserror::Error)]
pub enum CoefficientsError {
    /// The text is no CSV, or lacks a column, or has a cell that is no number.
    #[error("line {line}: {problem}")]
    Csv {
        /// From 1, the header's.
        line: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A quantity is not there, or not there often enough to be fitted.
    #[error("{of}: {quantity} is missing, or too few of its measurements are there")]
    Missing {
        /// The device kind, or the model and it.
        of: String,
        /// The quantity.
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

/// The measurements of a device, or of a model on one.
#[derive(Default)]
struct Measured {
    of: String,
    rows: Vec<Row>,
}

impl IgniterCoefficients {
    /// Reads measurements and fits the coefficients.
    ///
    /// # Errors
    /// The first line that cannot be read, or what is missing.
    pub fn from_csv(text: &str) -> Result<Self, CoefficientsError> {
        let mut devices: BTreeMap<DeviceKind, Measured> = BTreeMap::new();
        let mut pairs: BTreeMap<(ModelId, DeviceKind), Measured> = BTreeMap::new();
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        for (number, record) in reader.deserialize::<Row>().enumerate() {
            let line = number as u64 + 2;
            let refuse = |problem| CoefficientsError::Csv { line, problem };
            let row = record.map_err(|e| refuse(e.to_string()))?;
            if !row.value.is_finite() || row.value < 0.0 {
                return Err(refuse(format!(
                    "value must be finite and not negative, not {}",
                    row.value
                )));
            }
            let kind: DeviceKind = row
                .device_kind
                .parse()
                .map_err(|e: packhorse_cluster::IdError| refuse(e.to_string()))?;
            let (measured, of) = match &row.model {
                None => (devices.entry(kind.clone()).or_default(), kind.to_string()),
                Some(model) => {
                    let model: ModelId = model
                        .parse()
                        .map_err(|e: packhorse_cluster::IdError| refuse(e.to_string()))?;
                    let of = format!("{model} on {kind}");
                    (pairs.entry((model, kind)).or_default(), of)
                }
            };
            measured.of = of;
            measured.rows.push(row);
        }
        let mut coefficients = Self::default();
        for (kind, measured) in devices {
            coefficients.hardware.insert(kind, measured.hardware()?);
        }
        for (key, measured) in pairs {
            let Some(hardware) = coefficients.hardware.get(&key.1) else {
                return Err(CoefficientsError::Missing {
                    of: key.1.to_string(),
                    quantity: "max_frequency_mhz",
                });
            };
            let model = measured.model(hardware)?;
            coefficients.models.insert(key, model);
        }
        Ok(coefficients)
    }

    pub(super) fn workload(
        &self,
        model: &ModelId,
        kind: &DeviceKind,
    ) -> Option<(&Hardware, &ModelCoefficients)> {
        let of_model = self.models.get(&(model.clone(), kind.clone()))?;
        Some((self.hardware.get(kind)?, of_model))
    }
}

impl Measured {
    fn missing(&self, quantity: &'static str) -> CoefficientsError {
        CoefficientsError::Missing {
            of: self.of.clone(),
            quantity,
        }
    }

    fn of<'a>(&'a self, quantity: &'static str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.quantity == quantity)
    }

    fn one(&self, quantity: &'static str) -> Result<f64, CoefficientsError> {
        let row = self.of(quantity).next();
        row.map(|row| row.value)
            .ok_or_else(|| self.missing(quantity))
    }

    /// Above zero: something is divided by it.
    fn positive(&self, quantity: &'static str) -> Result<f64, CoefficientsError> {
        let value = self.one(quantity)?;
        if value > 0.0 {
            Ok(value)
        } else {
            Err(self.missing(quantity))
        }
    }

    /// By the number of equal workloads.
    fn colocated(&self, quantity: &'static str) -> BTreeMap<u32, f64> {
        let rows = self.of(quantity);
        rows.filter_map(|row| Some((row.colocated?, row.value)))
            .collect()
    }

    /// By batch size and share.
    fn points(&self, quantity: &'static str) -> Vec<(f64, f64, f64)> {
        self.of(quantity)
            .filter_map(|row| {
                Some((
                    f64::from(row.batch_size?),
                    row.compute_share_pct?,
                    row.value,
                ))
            })
            .collect()
    }

    fn at(&self, quantity: &'static str, batch: f64, share: f64) -> Result<f64, CoefficientsError> {
        let found = self
            .points(quantity)
            .into_iter()
            .find(|&(b, r, _)| b.to_bits() == batch.to_bits() && r.to_bits() == share.to_bits());
        found
            .map(|(.., value)| value)
            .ok_or_else(|| self.missing(quantity))
    }

    fn hardware(&self) -> Result<Hardware, CoefficientsError> {
        let (max_frequency, power_cap) = (
            self.positive("max_frequency_mhz")?,
            self.one("power_cap_w")?,
        );
        let frequency = self.colocated("frequency_mhz");
        let at_full = |count: &u32| frequency.get(count).is_none_or(|f| *f >= max_frequency);
        let drawn: Vec<(u32, f64)> = self.colocated("power_w").into_iter().collect();
        let uncapped: Vec<f64> = drawn
            .iter()
            .filter(|(count, _)| at_full(count))
            .map(|(_, power)| *power)
            .collect();
        let (Some(first), Some(last)) = (uncapped.first(), uncapped.last()) else {
            return Err(self.missing("power_w"));
        };
        // A capped reading says nothing of what would be drawn: the mean step of the others is continued.
        let step = (last - first) / (uncapped.len().max(2) - 1) as f64;
        let throttled = drawn.iter().filter(|(count, _)| !at_full(count));
        let points: Vec<([f64; 1], f64)> = throttled
            .enumerate()
            .map(|(beyond, (count, _))| {
                let would = last + step * (beyond + 1) as f64;
                ([would - power_cap], frequency[count] - max_frequency)
            })
            .collect();
        // A device that never throttled never will.
        let throttling = fit(&points).map_or(0.0, |[slope]| slope);
        // Gaps stretch with a lower clock; alone there is nobody to wait for.
        let gaps = self.colocated("kernel_gap_ms").into_iter();
        let shared = gaps.filter(|(count, _)| *count > 1).map(|(count, gap)| {
            let clock = frequency.get(&count).map_or(1.0, |f| f / max_frequency);
            (f64::from(count), gap * clock)
        });
        Ok(Hardware {
            max_frequency,
            power_cap,
            idle_power: self.one("idle_power_w")?,
            share_unit: self.positive("share_unit_pct")?,
            bus: self.positive("bus_bytes_per_ms")?,
            throttling,
            schedule: line(shared).ok_or_else(|| self.missing("kernel_gap_ms"))?,
        })
    }

    fn model(&self, hardware: &Hardware) -> Result<ModelCoefficients, CoefficientsError> {
        let schedule = self.one("schedule_ms")?;
        let latency = self.points("latency_ms");
        let mut active = Vec::new();
        let mut power = Vec::new();
        for &(batch, share, latency) in &latency {
            let clock = self.at("clock_mhz", batch, share)?;
            let time = latency * clock / hardware.max_frequency - schedule;
            active.push((batch, share, time));
            // Where it throttled, the power is the cap.
            if clock >= hardware.max_frequency {
                let drawn = self.at("draw_w", batch, share)? - hardware.idle_power;
                power.push((1e3 * batch / time, drawn));
            }
        }
        let mut cache = Vec::new();
        for (batch, share, used) in self.points("l2_pct") {
            let time = self.at("latency_ms", batch, share)? - schedule;
            cache.push((1e3 * batch / time, used));
        }
        let pair_clock = self.one("pair_clock_mhz")? / hardware.max_frequency;
        let slower = self.one("pair_ms")? * pair_clock / self.positive("solo_ms")? - 1.0;
        Ok(ModelCoefficients {
            input_bytes: self.one("input_bytes")?,
            output_bytes: self.one("output_bytes")?,
            kernels: self.one("kernels")?,
            schedule,
            active: fit_active(&active).ok_or_else(|| self.missing("latency_ms"))?,
            power: line(power.into_iter()).ok_or_else(|| self.missing("draw_w"))?,
            cache: line(cache.into_iter()).ok_or_else(|| self.missing("l2_pct"))?,
            cache_sensitivity: slower / self.positive("pair_l2_pct")?,
        })
    }
}

/// `t = (k₁b² + k₂b + k₃) / (r + k₄) + k₅`: linear but for `k₄`, which is searched for, coarsely and then by golden section.
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
    // Shares stay above zero: k₄ is above minus the least of them.
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
