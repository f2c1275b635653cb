//! Profiles, which are the measurements of models on kinds of devices, and their CSV format.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    ByteCount, ComputeShare, DeviceKind, IdError, InputShapes, InputShapesError, ModelId, Percent,
    UnitError,
};

/// The measurement of one batch size under one compute share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileRow {
    /// The rows in the batch, at least 1.
    pub batch_size: u32,
    /// The share of the multiprocessors that the replica could use while it was measured.
    pub compute_share: ComputeShare,
    /// The median time of one batch on the device, without waiting and without the network.
    pub latency: Duration,
    /// The 99th percentile of the time of one batch on the device.
    pub latency_p99: Option<Duration>,
    /// The memory of a replica that serves this batch size: weights and activations.
    pub memory: Option<ByteCount>,
    /// The highest achieved occupancy of the multiprocessors.
    pub achieved_occupancy: Option<Percent>,
    /// The mean achieved occupancy of the multiprocessors, weighted by duration.
    pub mean_occupancy: Option<Percent>,
    /// The mean utilisation of the multiprocessors, weighted by duration.
    pub sm_utilization: Option<Percent>,
}

/// All measurements of one model version on one kind of device, or estimates in their place. Has at least one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Ordered by share, largest first, then batch size.
    rows: Vec<ProfileRow>,
    source: ProfileSource,
    /// The shapes of the inputs that were measured; none if the program's inputs have one shape, or if it is unknown.
    input_shapes: Option<Arc<InputShapes>>,
}

/// The source of a profile's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProfileSource {
    /// They were measured.
    #[default]
    Measured,
    /// They were estimated from the program's operators. A measurement replaces them.
    Estimated,
}

/// The error for rows that are not a valid profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There are no rows.
    #[error("a profile needs at least one row")]
    Empty,
    /// Some rows of a profile are measured, and others estimated.
    #[error("source must be the same in all rows of a model on a kind of device: {0} on {1}")]
    MixedSources(ModelId, DeviceKind),
    /// Some rows of a profile have other shapes of inputs than others.
    #[error("input_shapes must be the same in all rows of a model on a kind of device: {0} on {1}")]
    MixedShapes(ModelId, DeviceKind),
    /// A batch size is 0.
    #[error("batch_size must be at least 1")]
    ZeroBatch,
    /// The time of a batch is 0.
    #[error("latency_ms must be above 0 (batch size {0})")]
    ZeroLatency(u32),
    /// Two rows have the same batch size and share.
    #[error("batch size {batch_size} at {share} % is given twice")]
    Duplicate {
        /// The batch size.
        batch_size: u32,
        /// The share in percent.
        share: f64,
    },
    /// The text is not CSV, a column is missing, or a cell is not a number.
    #[error("line {line}: {problem}")]
    Csv {
        /// The line number; the header is line 1.
        line: u64,
        /// The problem in that line.
        problem: String,
    },
}

impl Profile {
    /// Creates a measured profile from rows in any order.
    pub fn new(rows: Vec<ProfileRow>) -> Result<Self, ProfileError> {
        Self::from_source(rows, ProfileSource::Measured)
    }

    /// Creates an estimated profile from rows in any order.
    pub fn estimated(rows: Vec<ProfileRow>) -> Result<Self, ProfileError> {
        Self::from_source(rows, ProfileSource::Estimated)
    }

    fn from_source(mut rows: Vec<ProfileRow>, source: ProfileSource) -> Result<Self, ProfileError> {
        let order = |a: &ProfileRow, b: &ProfileRow| {
            let by_share = b
                .compute_share
                .partial_cmp(&a.compute_share)
                .unwrap_or(Ordering::Equal);
            by_share.then(a.batch_size.cmp(&b.batch_size))
        };
        rows.sort_by(order);
        for row in &rows {
            if row.batch_size == 0 {
                return Err(ProfileError::ZeroBatch);
            }
            if row.latency.is_zero() {
                return Err(ProfileError::ZeroLatency(row.batch_size));
            }
        }
        for pair in rows.windows(2) {
            if order(&pair[0], &pair[1]) == Ordering::Equal {
                return Err(ProfileError::Duplicate {
                    batch_size: pair[0].batch_size,
                    share: pair[0].compute_share.get(),
                });
            }
        }
        if rows.is_empty() {
            Err(ProfileError::Empty)
        } else {
            Ok(Self {
                rows,
                source,
                input_shapes: None,
            })
        }
    }

    /// Returns the profile as one that was measured with inputs of these shapes.
    #[must_use]
    pub fn with_input_shapes(self, shapes: InputShapes) -> Self {
        Self {
            input_shapes: Some(Arc::new(shapes)),
            ..self
        }
    }

    /// Returns the shapes of the inputs that were measured; `None` if the program's inputs have one shape, or if it is unknown.
    pub fn input_shapes(&self) -> Option<&InputShapes> {
        self.input_shapes.as_deref()
    }

    /// Returns the source of the rows.
    pub fn source(&self) -> ProfileSource {
        self.source
    }

    /// Returns all rows, ordered by share, largest first, then by batch size.
    pub fn rows(&self) -> &[ProfileRow] {
        &self.rows
    }

    /// Returns the rows of the largest measured share (normally the whole device), ordered by batch size. Not empty.
    pub fn whole(&self) -> &[ProfileRow] {
        let share = self.rows[0].compute_share;
        &self.rows[..self.rows.partition_point(|row| row.compute_share >= share)]
    }

    /// Returns the profile without the rows above `batch_size`, which is at least 1. If no row of [`Profile::whole`] is that small, its
    /// smallest one is scaled down to `batch_size` as [`Profile::latency`] extrapolates; other shares without a row are left out.
    #[must_use]
    pub fn up_to(&self, batch_size: u32) -> Self {
        let smaller = self.rows.iter().filter(|row| row.batch_size <= batch_size);
        let mut rows: Vec<ProfileRow> = smaller.copied().collect();
        let smallest = self.whole()[0];
        if smallest.batch_size > batch_size {
            rows.insert(
                0,
                ProfileRow {
                    batch_size,
                    latency: self.latency(batch_size).max(Duration::from_nanos(1)),
                    latency_p99: None,
                    memory: self.memory(batch_size),
                    ..smallest
                },
            );
        }
        Self {
            rows,
            source: self.source,
            input_shapes: self.input_shapes.clone(),
        }
    }

    /// Returns the time of a batch on the whole device: linear between measured sizes; below the smallest, the first segment
    /// extended, but at least the proportional part of the smallest; above the largest, proportional.
    pub fn latency(&self, batch_size: u32) -> Duration {
        let at = |row: &ProfileRow| Some(row.latency.as_secs_f64());
        let seconds = interpolate(self.whole(), batch_size, at, Extrapolation::Proportional);
        Duration::from_secs_f64(seconds.expect("every row has a latency"))
    }

    /// Returns the rows of each measured share, largest share first, each ordered by batch size. The first is [`Profile::whole`].
    pub fn by_share(&self) -> impl Iterator<Item = &[ProfileRow]> {
        self.rows
            .chunk_by(|a, b| a.compute_share == b.compute_share)
    }

    /// Returns the time of a batch under a compute share: at a measured share from its rows like [`Profile::latency`], between two
    /// measured shares linear in 1 / share, above the largest as under the largest; `None` below the smallest.
    pub fn latency_under(&self, batch_size: u32, share: ComputeShare) -> Option<Duration> {
        let share = share.get();
        let mut above: Option<(f64, f64)> = None;
        for rows in self.by_share() {
            let measured = rows[0].compute_share.get();
            let at = |row: &ProfileRow| Some(row.latency.as_secs_f64());
            let seconds = interpolate(rows, batch_size, at, Extrapolation::Proportional)?;
            if share >= measured {
                let between = above.map_or(seconds, |(larger, faster)| {
                    let part = (1.0 / share - 1.0 / larger) / (1.0 / measured - 1.0 / larger);
                    faster + (seconds - faster) * part
                });
                return Some(Duration::from_secs_f64(between));
            }
            above = Some((measured, seconds));
        }
        None
    }

    /// Returns the memory of a replica for a batch size, extrapolated like [`Profile::latency`]; `None` if no row has a value.
    pub fn memory(&self, batch_size: u32) -> Option<ByteCount> {
        let at = |row: &ProfileRow| Some(row.memory?.as_u64() as f64);
        interpolate(self.whole(), batch_size, at, Extrapolation::Proportional)
            .map(|bytes| ByteCount::new(bytes.round() as u64))
    }

    /// Returns the utilisation of the multiprocessors for a batch size: linear between measured sizes, constant outside them.
    pub fn sm_utilization(&self, batch_size: u32) -> Option<Percent> {
        let at = |row: &ProfileRow| Some(row.sm_utilization?.get());
        let percent = interpolate(self.whole(), batch_size, at, Extrapolation::Constant)?;
        Some(Percent::clamped(percent))
    }
}

/// The extrapolation of a measured quantity outside the measured batch sizes.
#[derive(Clone, Copy, PartialEq)]
enum Extrapolation {
    Proportional,
    Constant,
}

/// Interpolates a value piecewise linearly in the batch size, over the rows that have it.
fn interpolate(
    rows: &[ProfileRow],
    batch_size: u32,
    value: impl Fn(&ProfileRow) -> Option<f64>,
    extrapolation: Extrapolation,
) -> Option<f64> {
    let x = f64::from(batch_size);
    let mut points = rows
        .iter()
        .filter_map(|row| Some((f64::from(row.batch_size), value(row)?)));
    let (x0, y0) = points.next()?;
    let line = |a: (f64, f64), b: (f64, f64)| a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0);
    let mut left = (x0, y0);
    let mut first = true;
    for right in points {
        if first && x < x0 && extrapolation == Extrapolation::Proportional {
            return Some(line(left, right).max(y0 * x / x0));
        }
        if x <= right.0 {
            return Some(if x <= x0 { y0 } else { line(left, right) });
        }
        first = false;
        left = right;
    }
    match extrapolation {
        Extrapolation::Constant => Some(left.1),
        Extrapolation::Proportional => Some(left.1 * x / left.0),
    }
}

/// The profiles of many models on many kinds of devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileTable {
    profiles: BTreeMap<ModelId, BTreeMap<DeviceKind, Arc<Profile>>>,
}

/// A row of the CSV format.
#[derive(Serialize, Deserialize)]
struct CsvRow {
    model: String,
    device_kind: String,
    batch_size: u32,
    compute_share_pct: Option<f64>,
    latency_ms: f64,
    latency_p99_ms: Option<f64>,
    memory_mib: Option<f64>,
    achieved_occupancy_pct: Option<f64>,
    mean_occupancy_pct: Option<f64>,
    sm_utilization_pct: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<ProfileSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input_shapes: Option<String>,
}

/// The rows of one profile in the CSV format.
struct CsvProfile {
    rows: Vec<ProfileRow>,
    source: ProfileSource,
    input_shapes: Option<InputShapes>,
}

impl CsvProfile {
    /// Returns the profile, as far as its rows are valid.
    fn into_profile(self) -> Result<Profile, ProfileError> {
        let profile = Profile::from_source(self.rows, self.source)?;
        Ok(match self.input_shapes {
            Some(shapes) => profile.with_input_shapes(shapes),
            None => profile,
        })
    }
}

impl CsvRow {
    /// The columns that must be there.
    const REQUIRED: [&str; 4] = ["model", "device_kind", "batch_size", "latency_ms"];
}

#[derive(Debug, thiserror::Error)]
enum CellError {
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("input_shapes: {0}")]
    InputShapes(#[from] InputShapesError),
    #[error("{column}: {source}")]
    Unit {
        column: &'static str,
        #[source]
        source: UnitError,
    },
}

fn millis(column: &'static str, value: f64) -> Result<Duration, CellError> {
    if value.is_finite() && (0.0..=1e9).contains(&value) {
        return Ok(Duration::from_secs_f64(value / 1e3));
    }
    Err(CellError::Unit {
        column,
        source: UnitError {
            unit: "a latency in ms",
            allowed: "between 0 and 1e9",
            value,
        },
    })
}

impl CsvRow {
    fn parse(self) -> Result<(ModelId, DeviceKind, CsvProfile), CellError> {
        let unit = |column| move |source| CellError::Unit { column, source };
        let percent =
            |column, cell: Option<f64>| cell.map(Percent::new).transpose().map_err(unit(column));
        let row = ProfileRow {
            batch_size: self.batch_size,
            compute_share: ComputeShare::new(self.compute_share_pct.unwrap_or(100.0))
                .map_err(unit("compute_share_pct"))?,
            latency: millis("latency_ms", self.latency_ms)?,
            latency_p99: self
                .latency_p99_ms
                .map(|ms| millis("latency_p99_ms", ms))
                .transpose()?,
            memory: self
                .memory_mib
                .map(ByteCount::try_from_mib_f64)
                .transpose()
                .map_err(unit("memory_mib"))?,
            achieved_occupancy: percent("achieved_occupancy_pct", self.achieved_occupancy_pct)?,
            mean_occupancy: percent("mean_occupancy_pct", self.mean_occupancy_pct)?,
            sm_utilization: percent("sm_utilization_pct", self.sm_utilization_pct)?,
        };
        let shapes = self.input_shapes.filter(|text| !text.is_empty());
        let profile = CsvProfile {
            rows: vec![row],
            source: self.source.unwrap_or_default(),
            input_shapes: shapes.map(|text| text.parse()).transpose()?,
        };
        Ok((self.model.parse()?, self.device_kind.parse()?, profile))
    }

    fn from_row(
        model: &ModelId,
        kind: &DeviceKind,
        row: &ProfileRow,
        source: Option<ProfileSource>,
        input_shapes: Option<String>,
    ) -> Self {
        let millis = |duration: Duration| duration.as_nanos() as f64 / 1e6;
        Self {
            model: model.to_string(),
            device_kind: kind.to_string(),
            batch_size: row.batch_size,
            compute_share_pct: Some(row.compute_share.get()),
            latency_ms: millis(row.latency),
            latency_p99_ms: row.latency_p99.map(millis),
            memory_mib: row.memory.map(ByteCount::as_mib_f64),
            achieved_occupancy_pct: row.achieved_occupancy.map(Percent::get),
            mean_occupancy_pct: row.mean_occupancy.map(Percent::get),
            sm_utilization_pct: row.sm_utilization.map(Percent::get),
            source,
            input_shapes,
        }
    }
}

impl ProfileTable {
    /// The header of the CSV format.
    pub const CSV_HEADER: &'static str = "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,\
        memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct";

    /// Returns the profile of a model on a kind of device.
    pub fn get(&self, model: &ModelId, kind: &DeviceKind) -> Option<&Profile> {
        self.profiles.get(model)?.get(kind).map(Arc::as_ref)
    }

    /// Returns the profile of a model on a kind of device, to be kept beside the table.
    pub fn get_shared(&self, model: &ModelId, kind: &DeviceKind) -> Option<Arc<Profile>> {
        self.profiles.get(model)?.get(kind).map(Arc::clone)
    }

    /// Adds a profile, or replaces the present one of the same model and kind.
    pub fn insert(&mut self, model: ModelId, kind: DeviceKind, profile: impl Into<Arc<Profile>>) {
        let kinds = self.profiles.entry(model).or_default();
        kinds.insert(kind, profile.into());
    }

    /// Removes the profile of a model on a kind of device. Returns it, if there is one.
    pub fn remove(&mut self, model: &ModelId, kind: &DeviceKind) -> Option<Arc<Profile>> {
        let kinds = self.profiles.get_mut(model)?;
        let removed = kinds.remove(kind);
        if kinds.is_empty() {
            self.profiles.remove(model);
        }
        removed
    }

    /// Returns true if a model was measured on a kind of device: it has a profile that is no estimate.
    pub fn is_measured(&self, model: &ModelId, kind: &DeviceKind) -> bool {
        let profile = self.get(model, kind);
        profile.is_some_and(|profile| profile.source() == ProfileSource::Measured)
    }

    /// Gives the models that pass the filter their profiles of a kind of device under another kind, which it returns: a device of that kind is like
    /// one of the first, but takes no replicas of the other models. `number` tells such kinds apart.
    pub fn except(
        &mut self,
        kind: &DeviceKind,
        number: usize,
        is_kept: impl Fn(&ModelId) -> bool,
    ) -> DeviceKind {
        let name = format!("{:.100}-except-{number}", kind.as_str());
        let Ok(other) = name.parse::<DeviceKind>() else {
            return kind.clone();
        };
        for (model, kinds) in &mut self.profiles {
            if let Some(profile) = kinds.get(kind).map(Arc::clone)
                && is_kept(model)
            {
                kinds.insert(other.clone(), profile);
            }
        }
        other
    }

    /// Removes all profiles of a model.
    pub fn remove_model(&mut self, model: &ModelId) {
        self.profiles.remove(model);
    }

    /// Returns the profiles of a model, ordered by kind of device.
    pub fn of_model(&self, model: &ModelId) -> impl Iterator<Item = (&DeviceKind, &Arc<Profile>)> {
        self.profiles.get(model).into_iter().flatten()
    }

    /// Returns all profiles, ordered by model, then kind.
    pub fn iter(&self) -> impl Iterator<Item = (&ModelId, &DeviceKind, &Profile)> {
        self.profiles.iter().flat_map(|(model, kinds)| {
            kinds
                .iter()
                .map(move |(kind, profile)| (model, kind, profile.as_ref()))
        })
    }

    /// Returns the number of profiles.
    pub fn len(&self) -> usize {
        self.profiles.values().map(BTreeMap::len).sum()
    }

    /// Returns true if there are no profiles.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }

    /// Reads the CSV format: columns in any order, empty cells for unknown values, `model` as NAME or NAME:VERSION. Without the column
    /// `source` all rows are measured. `input_shapes` is text as of [`InputShapes`].
    ///
    /// # Errors
    /// Names the first line that cannot be read, with its number and column.
    pub fn from_csv(text: &str) -> Result<Self, ProfileError> {
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let csv_error = |line, problem| ProfileError::Csv { line, problem };
        // Without rows nothing else reads the header.
        let header = reader.headers().map_err(|e| csv_error(1, describe(&e)))?;
        if let Some(column) = CsvRow::REQUIRED
            .iter()
            .find(|column| !header.iter().any(|found| found == **column))
        {
            let problem = format!("the header has no column {column}");
            return Err(csv_error(1, problem));
        }
        let mut groups: BTreeMap<(ModelId, DeviceKind), CsvProfile> = BTreeMap::new();
        for record in reader.deserialize::<CsvRow>() {
            let row = record.map_err(|e| {
                let line = e.position().map_or(1, csv::Position::line);
                csv_error(line, describe(&e))
            })?;
            let line = groups
                .values()
                .map(|group| group.rows.len() as u64)
                .sum::<u64>()
                + 2;
            let (model, kind, row) = row.parse().map_err(|e| csv_error(line, e.to_string()))?;
            match groups.entry((model, kind)) {
                Entry::Occupied(entry) if entry.get().source != row.source => {
                    let (model, kind) = entry.key().clone();
                    return Err(ProfileError::MixedSources(model, kind));
                }
                Entry::Occupied(entry) if entry.get().input_shapes != row.input_shapes => {
                    let (model, kind) = entry.key().clone();
                    return Err(ProfileError::MixedShapes(model, kind));
                }
                Entry::Occupied(mut entry) => entry.get_mut().rows.extend(row.rows),
                Entry::Vacant(entry) => _ = entry.insert(row),
            }
        }
        let mut table = Self::default();
        for ((model, kind), profile) in groups {
            table.insert(model, kind, profile.into_profile()?);
        }
        Ok(table)
    }

    /// Writes the CSV format, ordered by model, kind, share and batch size; with the column `source` if a profile is estimated, and with the
    /// last column `input_shapes` if these are known of a profile.
    /// [`ProfileTable::from_csv`] reads it.
    pub fn to_csv(&self) -> String {
        let is_estimated = |profile: &Profile| profile.source == ProfileSource::Estimated;
        let has_source = self.iter().any(|(_, _, profile)| is_estimated(profile));
        let has_shapes = self
            .iter()
            .any(|(_, _, profile)| profile.input_shapes.is_some());
        let mut writer = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(Vec::new());
        let mut text = Self::CSV_HEADER.to_owned();
        text.push_str(if has_source { ",source" } else { "" });
        text.push_str(if has_shapes { ",input_shapes\n" } else { "\n" });
        for (model, kind, profile) in self.iter() {
            let shapes = || profile.input_shapes().map(ToString::to_string);
            let shapes = has_shapes.then(|| shapes().unwrap_or_default());
            for row in profile.rows() {
                let source = has_source.then_some(profile.source);
                writer
                    .serialize(CsvRow::from_row(model, kind, row, source, shapes.clone()))
                    .expect("numbers and names are CSV cells");
            }
        }
        let body = writer.into_inner().expect("writing to memory cannot fail");
        text.push_str(&String::from_utf8(body).expect("names are ASCII"));
        text
    }
}

fn describe(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            let header = ProfileTable::CSV_HEADER
                .split(',')
                .chain(["source", "input_shapes"]);
            let header: Vec<&str> = header.collect();
            match err
                .field()
                .and_then(|field| header.get(usize::try_from(field).ok()?))
            {
                Some(column) => format!("{column}: {}", err.kind()),
                None => err.kind().to_string(),
            }
        }
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("{len} cells, expected {expected_len}"),
        _ => "not UTF-8 text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(rows: &str) -> Result<ProfileTable, ProfileError> {
        ProfileTable::from_csv(&format!("{}\n{rows}", ProfileTable::CSV_HEADER))
    }

    fn profile(rows: &str) -> Profile {
        let table = table(rows).unwrap();
        table.iter().next().unwrap().2.clone()
    }

    #[test]
    fn latency_is_extrapolated_outside_the_measured_sizes() {
        let profile = profile("m,k,4,,8,,100,,,50\nm,k,8,,10,,200,,,90\n");
        let ms = |batch| profile.latency(batch).as_secs_f64() * 1e3;
        let check = |batch, expected: f64| {
            assert!(
                (ms(batch) - expected).abs() < 1e-6,
                "{batch}: {}",
                ms(batch)
            );
        };
        check(4, 8.0);
        check(6, 9.0);
        check(8, 10.0);
        check(1, 6.5); // the first segment extended
        check(16, 20.0); // proportional
        for (batch, percent) in [(1, 50.0), (6, 70.0), (99, 90.0)] {
            assert_eq!(
                profile.sm_utilization(batch),
                Some(Percent::new(percent).unwrap())
            );
        }
        assert_eq!(profile.memory(16), ByteCount::from_mib(400));
    }

    #[test]
    fn latency_between_measured_shares_is_linear_in_their_reciprocals() {
        let profile = profile("m,k,1,100,10,,,,,\nm,k,1,50,20,,,,,\nm,k,1,25,60,,,,,\n");
        let ms = |share| {
            let share = ComputeShare::new(share).unwrap();
            Some(profile.latency_under(1, share)?.as_secs_f64() * 1e3)
        };
        // 1/share is 0.02 at 50 and 0.04 at 25: 0.03, half way, at 33.3.
        for (share, expected) in [
            (100.0, 10.0),
            (50.0, 20.0),
            (100.0 / 3.0, 40.0),
            (25.0, 60.0),
        ] {
            let found = ms(share).unwrap();
            assert!((found - expected).abs() < 1e-6, "{share}: {found}");
        }
        assert_eq!(ms(24.9), None);
        assert_eq!(profile.by_share().count(), 3);
    }

    #[test]
    fn latency_below_the_smallest_size_is_at_least_its_proportional_part() {
        // The first segment is steep: extended to 1 it would be negative.
        let steep = profile("m,k,4,,4,,,,,\nm,k,8,,12,,,,,\n");
        assert_eq!(steep.latency(1), Duration::from_millis(1));
        let single = profile("m,k,4,,8,,,,,\n");
        assert_eq!(single.latency(2), Duration::from_millis(4));
        assert_eq!(single.memory(2), None);
    }

    #[test]
    fn rows_without_a_metric_are_left_out_of_its_line_only() {
        let gap = profile("m,k,1,,1,,10,,,\nm,k,2,,2,,,,,\nm,k,4,,4,,40,,,\n");
        assert_eq!(gap.memory(2), ByteCount::from_mib(20));
        assert_eq!(gap.latency(2), Duration::from_millis(2));
        assert_eq!(gap.sm_utilization(2), None);
    }

    #[test]
    fn bad_tables_are_refused_with_line_and_column() {
        let message = |rows: &str| table(rows).unwrap_err().to_string();
        assert_eq!(message("m,k,0,,1,,,,,\n"), "batch_size must be at least 1");
        assert_eq!(
            message("m,k,1,,0,,,,,\n"),
            "latency_ms must be above 0 (batch size 1)"
        );
        assert_eq!(
            message("m,k,1,,1,,,,,\nm,k,1,100,2,,,,,\n"),
            "batch size 1 at 100 % is given twice"
        );
        assert!(message("m,k,1,,nan,,,,,\n").starts_with("line 2: latency_ms"));
        assert!(message("m,k,1,,1,,-5,,,\n").starts_with("line 2: memory_mib"));
        assert!(message("m,k,1,,1,,,,,\nm,k,x,,1,,,,,\n").starts_with("line 3: batch_size"));
        assert!(message("m,k,1,,1\n").contains("5 cells, expected 10"));
        assert!(message("../m,k,1,,1,,,,,\n").contains("model name"));
        let unread = |text: &str| ProfileTable::from_csv(text).unwrap_err().to_string();
        assert!(unread("model,batch_size\n").contains("no column device_kind"));
        assert!(unread("").contains("no column model"));
        let header = format!("{}\n", ProfileTable::CSV_HEADER);
        assert!(ProfileTable::from_csv(&header).unwrap().is_empty());
        assert!(
            ProfileTable::from_csv("model,batch_size\nm,1\n")
                .unwrap_err()
                .to_string()
                .contains("device_kind")
        );
    }

    #[test]
    fn the_source_is_written_if_it_is_an_estimate_and_measured_if_it_is_absent() {
        let measured = "m,k,1,100,1,,,,,";
        assert_eq!(
            profile(&format!("{measured}\n")).source(),
            ProfileSource::Measured
        );
        let with_source = |rows: &str| {
            ProfileTable::from_csv(&format!("{},source\n{rows}", ProfileTable::CSV_HEADER))
        };
        let both = with_source(&format!(
            "e,k,1,100,2,,,,,,estimated\n{measured},measured\n{measured2},\n",
            measured2 = "n,k,1,100,1,,,,,"
        ));
        let both = both.unwrap();
        let sources: Vec<ProfileSource> = both
            .iter()
            .map(|(_, _, profile)| profile.source())
            .collect();
        assert_eq!(
            sources,
            [
                ProfileSource::Estimated,
                ProfileSource::Measured,
                ProfileSource::Measured
            ]
        );
        assert_eq!(ProfileTable::from_csv(&both.to_csv()).unwrap(), both);
        assert!(
            both.to_csv()
                .starts_with(&format!("{},source\n", ProfileTable::CSV_HEADER))
        );
        let mixed = with_source("m,k,1,100,1,,,,,,estimated\nm,k,2,100,1,,,,,,measured\n");
        assert_eq!(
            mixed.unwrap_err().to_string(),
            "source must be the same in all rows of a model on a kind of device: m:1 on k"
        );
        let guessed = with_source("m,k,1,100,1,,,,,,guessed\n")
            .unwrap_err()
            .to_string();
        assert!(
            guessed.starts_with("line 2: ") && guessed.contains("`guessed`"),
            "{guessed}"
        );
    }

    #[test]
    fn the_shapes_of_the_inputs_are_written_if_one_is_known() {
        let mut table = table("a,k,1,100,1,,,,,\nb,k,1,100,1,,,,,\nb,k,2,100,1,,,,,\n").unwrap();
        let (b, kind) = ("b".parse().unwrap(), "k".parse().unwrap());
        let shapes: InputShapes = "-1x128 -1x128".parse().unwrap();
        let profile = table.get(&b, &kind).unwrap().clone();
        table.insert(
            b.clone(),
            kind.clone(),
            profile.with_input_shapes(shapes.clone()),
        );
        let csv = table.to_csv();
        assert!(csv.contains("\na:1,k,1,100.0,1.0,,,,,,\n"), "{csv}");
        let read = ProfileTable::from_csv(&csv).unwrap();
        assert_eq!(read, table);
        let measured = read.get(&b, &kind).unwrap();
        assert_eq!(measured.input_shapes(), Some(&shapes));
        assert_eq!(measured.up_to(1).input_shapes(), Some(&shapes));
        let mixed = csv.replacen("-1x128 -1x128", "-1x16 -1x16", 1);
        let error = ProfileTable::from_csv(&mixed).unwrap_err().to_string();
        assert!(
            error.starts_with("input_shapes must be the same"),
            "{error}"
        );
        let unread = csv.replacen("-1x128", "-1y128", 1);
        let error = ProfileTable::from_csv(&unread).unwrap_err().to_string();
        assert!(
            error.starts_with("line 3: input_shapes: expected"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(rows in proptest::collection::btree_map(1_u32..512, (1_u64..10_000_000_000, proptest::option::of(0_u64..1 << 40)), 1..12)) {
            let rows = rows.into_iter().map(|(batch_size, (nanos, memory))| ProfileRow {
                batch_size,
                compute_share: ComputeShare::WHOLE,
                latency: Duration::from_nanos(nanos),
                latency_p99: None,
                memory: memory.map(ByteCount::new),
                achieved_occupancy: None,
                mean_occupancy: Some(Percent::new(12.5).unwrap()),
                sm_utilization: None,
            });
            let mut table = ProfileTable::default();
            table.insert("m:3".parse().unwrap(), "k".parse().unwrap(), Profile::new(rows.collect()).unwrap());
            prop_assert_eq!(ProfileTable::from_csv(&table.to_csv()).unwrap(), table);
        }

        #[test]
        fn latency_is_exact_where_measured_and_between_its_neighbours_elsewhere(
            points in proptest::collection::btree_map(1_u32..512, 1_000_u64..1_000_000_000, 1..8),
            batch in 1_u32..600,
        ) {
            let row = |(batch_size, nanos): (&u32, &u64)| ProfileRow {
                batch_size: *batch_size,
                compute_share: ComputeShare::WHOLE,
                latency: Duration::from_nanos(*nanos),
                latency_p99: None,
                memory: None,
                achieved_occupancy: None,
                mean_occupancy: None,
                sm_utilization: None,
            };
            let profile = Profile::new(points.iter().map(row).collect()).unwrap();
            let latency = profile.latency(batch).as_secs_f64() * 1e9;
            let below = points.range(..=batch).next_back();
            let above = points.range(batch..).next();
            match (below, above) {
                (Some((_, a)), Some((_, b))) => {
                    prop_assert!(latency >= *a.min(b) as f64 - 1.0 && latency <= *a.max(b) as f64 + 1.0);
                }
                (None, Some((size, nanos))) => {
                    prop_assert!(latency >= *nanos as f64 * f64::from(batch) / f64::from(*size) - 1.0);
                }
                (Some((size, nanos)), None) => {
                    let proportional = *nanos as f64 * f64::from(batch) / f64::from(*size);
                    prop_assert!((latency - proportional).abs() <= 1.0);
                }
                (None, None) => unreachable!("there is at least one point"),
            }
        }
    }
}
