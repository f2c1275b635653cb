//! Measurements of pairs of replicas that shared one device: a table in CSV, and the observations that it contains.

use std::time::Duration;

use packhorse_cluster::{
    ComputeShare, DeviceKind, DeviceObservation, ModelId, ProfileTable, ReplicaObservation,
};
use serde::{Deserialize, Serialize};

/// The number of batches that a measured latency counts for.
const BATCHES_PER_MEASUREMENT: u64 = 100;
/// The largest number of pairs in a table.
const MAX_PAIRS: usize = 100_000;
/// The longest latency and the largest standard deviation that a table may contain.
const MAX_LATENCY: Duration = Duration::from_hours(1);

/// One of two replicas that were measured together.
#[derive(Clone, Debug, PartialEq)]
pub struct PairMember {
    /// The replica's model.
    pub model: ModelId,
    /// The rows of its batches.
    pub batch_size: u32,
    /// Its share of the multiprocessors; the whole sets no limit.
    pub compute_share: ComputeShare,
    /// The latency of a batch beside the other replica.
    pub latency: Duration,
    /// The standard deviation of that latency.
    pub latency_std: Option<Duration>,
    /// The latency of a batch with the same share and without the other replica.
    pub solo_latency: Option<Duration>,
}

impl PairMember {
    /// Returns the latency over the solo latency. A solo latency that was not measured is taken from the profile; `None` if that has
    /// no such row.
    pub fn slowdown(&self, kind: &DeviceKind, profiles: &ProfileTable) -> Option<f64> {
        let from_profile = || {
            let profile = profiles.get(&self.model, kind)?;
            profile.latency_under(self.batch_size, self.compute_share)
        };
        let solo_latency = self.solo_latency.or_else(from_profile)?;
        Some(self.latency.as_secs_f64() / solo_latency.as_secs_f64())
    }

    fn observation(&self, kind: &DeviceKind, profiles: &ProfileTable) -> ReplicaObservation {
        let slowdown = self.slowdown(kind, profiles);
        ReplicaObservation {
            model: self.model.clone(),
            compute_share: (self.compute_share != ComputeShare::WHOLE)
                .then_some(self.compute_share),
            batches: slowdown.map_or(0, |_| BATCHES_PER_MEASUREMENT),
            mean_rows: f64::from(self.batch_size),
            busy: 1.0,
            slowdown: slowdown.unwrap_or(1.0),
        }
    }
}

/// A table of measured pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairTable {
    /// The pairs in the order in which they were measured.
    pub pairs: Vec<[PairMember; 2]>,
}

/// The reason why a table cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PairTableError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The reason why the line cannot be read.
    pub problem: String,
}

#[derive(Serialize, Deserialize)]
struct CsvRow {
    model_a: String,
    model_b: String,
    batch_a: u32,
    batch_b: u32,
    share_a_pct: f64,
    share_b_pct: f64,
    latency_a_ms: f64,
    latency_b_ms: f64,
    #[serde(default)]
    std_a_ms: Option<f64>,
    #[serde(default)]
    std_b_ms: Option<f64>,
    #[serde(default)]
    alone_a_ms: Option<f64>,
    #[serde(default)]
    alone_b_ms: Option<f64>,
}

impl CsvRow {
    fn parse(self) -> Result<[PairMember; 2], String> {
        let a = parse_member(
            "a",
            (&self.model_a, self.batch_a, self.share_a_pct),
            (self.latency_a_ms, self.std_a_ms, self.alone_a_ms),
        )?;
        let b = parse_member(
            "b",
            (&self.model_b, self.batch_b, self.share_b_pct),
            (self.latency_b_ms, self.std_b_ms, self.alone_b_ms),
        )?;
        Ok([a, b])
    }

    fn from_pair([a, b]: &[PairMember; 2]) -> Self {
        let millis = |duration: Duration| duration.as_nanos() as f64 / 1e6;
        Self {
            model_a: a.model.to_string(),
            model_b: b.model.to_string(),
            batch_a: a.batch_size,
            batch_b: b.batch_size,
            share_a_pct: a.compute_share.get(),
            share_b_pct: b.compute_share.get(),
            latency_a_ms: millis(a.latency),
            latency_b_ms: millis(b.latency),
            std_a_ms: a.latency_std.map(millis),
            std_b_ms: b.latency_std.map(millis),
            alone_a_ms: a.solo_latency.map(millis),
            alone_b_ms: b.solo_latency.map(millis),
        }
    }
}

/// The columns that may be missing.
const OPTIONAL_COLUMNS: [&str; 4] = ["std_a_ms", "std_b_ms", "alone_a_ms", "alone_b_ms"];

/// The columns that must be there.
const REQUIRED_COLUMNS: [&str; 8] = [
    "model_a",
    "model_b",
    "batch_a",
    "batch_b",
    "share_a_pct",
    "share_b_pct",
    "latency_a_ms",
    "latency_b_ms",
];

fn parse_member(
    side: &str,
    (model, batch_size, share): (&str, u32, f64),
    (latency, latency_std, solo_latency): (f64, Option<f64>, Option<f64>),
) -> Result<PairMember, String> {
    let duration = |column: &str, ms: f64| {
        let duration = Duration::try_from_secs_f64(ms / 1e3).ok();
        let duration = duration.filter(|duration| *duration <= MAX_LATENCY);
        duration.ok_or_else(|| {
            let max = MAX_LATENCY.as_millis();
            format!("{column}_{side}_ms: expected 0 to {max}, not {ms:?}")
        })
    };
    let positive_duration = |column, ms| {
        let latency = duration(column, ms)?;
        if latency.is_zero() {
            return Err(format!("{column}_{side}_ms: expected above 0, not {ms:?}"));
        }
        Ok(latency)
    };
    if batch_size == 0 {
        return Err(format!("batch_{side}: expected at least 1, not 0"));
    }
    Ok(PairMember {
        model: model.parse().map_err(|e| format!("model_{side}: {e}"))?,
        batch_size,
        compute_share: ComputeShare::new(share).map_err(|e| format!("share_{side}_pct: {e}"))?,
        latency: positive_duration("latency", latency)?,
        latency_std: latency_std.map(|ms| duration("std", ms)).transpose()?,
        solo_latency: solo_latency
            .map(|ms| positive_duration("alone", ms))
            .transpose()?,
    })
}

impl PairTable {
    /// Reads a table in CSV. Its columns are `model_a`, `model_b`, `batch_a`, `batch_b`, `share_a_pct`, `share_b_pct`, `latency_a_ms`
    /// and `latency_b_ms`. The columns `std_a_ms`, `std_b_ms`, `alone_a_ms` and `alone_b_ms` are optional, and so are their cells.
    ///
    /// # Errors
    /// Returns the first line that cannot be read.
    pub fn from_csv(text: &str) -> Result<Self, PairTableError> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        // Without rows nothing else reads the header.
        let header_error = |problem| PairTableError { line: 1, problem };
        let header = reader.headers().map_err(|e| header_error(e.to_string()))?;
        if let Some(column) = REQUIRED_COLUMNS
            .iter()
            .find(|column| !header.iter().any(|found| found == **column))
        {
            return Err(header_error(format!("the header has no column {column}")));
        }
        let mut pairs = Vec::new();
        for (index, row) in reader.deserialize::<CsvRow>().enumerate() {
            let error = |problem| PairTableError {
                line: index + 2,
                problem,
            };
            if index == MAX_PAIRS {
                return Err(error(format!("over the limit of {MAX_PAIRS} pairs")));
            }
            let row = row.map_err(|e| error(e.to_string()))?;
            pairs.push(row.parse().map_err(error)?);
        }
        Ok(Self { pairs })
    }

    /// Returns the table in the CSV that [`PairTable::from_csv`] reads, with its header even if there are no pairs.
    pub fn to_csv(&self) -> String {
        let mut writer = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(Vec::new());
        let header = REQUIRED_COLUMNS.iter().chain(&OPTIONAL_COLUMNS);
        writer
            .write_record(header)
            .expect("writing to memory cannot fail");
        for pair in &self.pairs {
            let row = CsvRow::from_pair(pair);
            writer
                .serialize(row)
                .expect("numbers and names are CSV cells");
        }
        let bytes = writer.into_inner().expect("writing to memory cannot fail");
        String::from_utf8(bytes).expect("names are UTF-8")
    }

    /// Returns an observation per pair, of a device of this kind whose replicas are both always active, for [`crate::SlowdownModel`].
    pub fn observations(
        &self,
        kind: &DeviceKind,
        profiles: &ProfileTable,
    ) -> Vec<DeviceObservation> {
        let observation = |pair: &[PairMember; 2]| DeviceObservation {
            kind: kind.clone(),
            replicas: pair
                .iter()
                .map(|member| member.observation(kind, profiles))
                .collect(),
        };
        self.pairs.iter().map(observation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlowdownModel;

    const PAIRS: &str = "\
model_a,model_b,batch_a,batch_b,share_a_pct,share_b_pct,latency_a_ms,latency_b_ms,std_a_ms,std_b_ms,alone_a_ms,alone_b_ms
a:1,b:2,4,8,50.0,50.0,15.0,30.0,0.5,,10.0,20.0
a:1,a:1,4,4,100.0,100.0,12.0,12.5,,,10.0,
";
    const PROFILES: &str = "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,\
        achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct\na,T4,4,100,10,,,,,60\nb:2,T4,8,50,20,,,,,60\n";

    #[test]
    fn a_table_is_read_back_as_it_was_written() {
        let table = PairTable::from_csv(PAIRS).unwrap();
        assert_eq!(table.to_csv(), PAIRS);
        assert_eq!(PairTable::from_csv(&table.to_csv()), Ok(table));
    }

    #[test]
    fn the_measured_slowdowns_of_pairs_are_learned() {
        let profiles = ProfileTable::from_csv(PROFILES).unwrap();
        let kind: DeviceKind = "T4".parse().unwrap();
        let table = PairTable::from_csv(PAIRS).unwrap();
        let observations = table.observations(&kind, &profiles);
        // 15 / 10, 30 / 20, 12 / 10, and 12.5 over the profile's 10.
        let slowdowns: Vec<f64> = observations
            .iter()
            .flat_map(|observation| observation.replicas.iter().map(|replica| replica.slowdown))
            .collect();
        assert_eq!(slowdowns, [1.5, 1.5, 1.2, 1.25]);
        assert_eq!(observations[1].replicas[0].compute_share, None);
        let learned = SlowdownModel::from_observations(&observations[..1], &profiles);
        for slowdown in learned.predict_observed(&observations[0], &profiles) {
            assert!((slowdown.mean - 1.5).abs() < 0.05, "{slowdown:?}");
        }
    }

    #[test]
    fn without_a_solo_latency_a_replica_counts_as_not_measured() {
        let none = ProfileTable::default();
        let table = PairTable::from_csv(PAIRS).unwrap();
        let observed = &table.observations(&"T4".parse().unwrap(), &none)[1].replicas;
        let batches = [0, 1].map(|i| observed[i].batches);
        assert_eq!(batches, [BATCHES_PER_MEASUREMENT, 0]);
    }

    #[test]
    fn the_line_that_cannot_be_read_is_named() {
        for (from, to, problem) in [
            (
                ",15.0,",
                ",0,",
                "line 2: latency_a_ms: expected above 0, not 0.0",
            ),
            (
                ",12.0,12.5",
                ",12.0,-1",
                "line 3: latency_b_ms: expected 0 to 3600000, not -1.0",
            ),
            (
                ",15.0,",
                ",1e308,",
                "line 2: latency_a_ms: expected 0 to 3600000, not 1e308",
            ),
            (
                "b:2,4",
                "b:2,0",
                "line 2: batch_a: expected at least 1, not 0",
            ),
        ] {
            let error = PairTable::from_csv(&PAIRS.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.to_string(), problem);
        }
        let error = PairTable::from_csv(&PAIRS.replace("b:2,4,8,50.0", "b:2,4,8,150")).unwrap_err();
        assert!(
            error.to_string().starts_with("line 2: share_a_pct: "),
            "{error}"
        );
    }
}
