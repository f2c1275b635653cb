//! Pairs of replicas that were measured beside each other on one device: a table in CSV, and what it teaches.

use std::time::Duration;

use packhorse_cluster::{
    ComputeShare, DeviceKind, DeviceObservation, ModelId, ProfileTable, ReplicaObservation,
};
use serde::{Deserialize, Serialize};

/// How many times more certain than one batch a measured latency is taken to be.
const BATCHES: u64 = 100;
/// The most pairs of a table.
const MAX_PAIRS: usize = 100_000;
/// No batch takes longer.
const LONGEST: Duration = Duration::from_hours(1);

/// One of two replicas that were measured together.
#[derive(Clone, Debug, PartialEq)]
pub struct PairMember {
    /// Which model.
    pub model: ModelId,
    /// The rows of its batches.
    pub batch_size: u32,
    /// Its share of the multiprocessors; the whole sets no limit.
    pub compute_share: ComputeShare,
    /// How long a batch took beside the other.
    pub latency: Duration,
    /// How its latencies scattered: their standard deviation.
    pub std: Option<Duration>,
    /// How long a batch took with the same share and without the other.
    pub alone: Option<Duration>,
}

impl PairMember {
    /// How many times as long as alone a batch took; by the profile where that was not measured, `None` where it has no such row.
    pub fn slowdown(&self, kind: &DeviceKind, profiles: &ProfileTable) -> Option<f64> {
        let known = || {
            let profile = profiles.get(&self.model, kind)?;
            profile.latency_under(self.batch_size, self.compute_share)
        };
        let alone = self.alone.or_else(known)?;
        Some(self.latency.as_secs_f64() / alone.as_secs_f64())
    }

    fn observed(&self, kind: &DeviceKind, profiles: &ProfileTable) -> ReplicaObservation {
        let slowdown = self.slowdown(kind, profiles);
        ReplicaObservation {
            model: self.model.clone(),
            compute_share: (self.compute_share != ComputeShare::WHOLE)
                .then_some(self.compute_share),
            batches: slowdown.map_or(0, |_| BATCHES),
            mean_rows: f64::from(self.batch_size),
            busy: 1.0,
            slowdown: slowdown.unwrap_or(1.0),
        }
    }
}

/// Measured pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairTable {
    /// In the order in which they were measured.
    pub pairs: Vec<[PairMember; 2]>,
}

/// The line of a table that cannot be read, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PairTableError {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong.
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
        let a = member(
            "a",
            (&self.model_a, self.batch_a, self.share_a_pct),
            (self.latency_a_ms, self.std_a_ms, self.alone_a_ms),
        )?;
        let b = member(
            "b",
            (&self.model_b, self.batch_b, self.share_b_pct),
            (self.latency_b_ms, self.std_b_ms, self.alone_b_ms),
        )?;
        Ok([a, b])
    }

    fn print([a, b]: &[PairMember; 2]) -> Self {
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
            std_a_ms: a.std.map(millis),
            std_b_ms: b.std.map(millis),
            alone_a_ms: a.alone.map(millis),
            alone_b_ms: b.alone.map(millis),
        }
    }
}

fn member(
    side: &str,
    (model, batch_size, share): (&str, u32, f64),
    (latency, std, alone): (f64, Option<f64>, Option<f64>),
) -> Result<PairMember, String> {
    let duration = |what: &str, ms: f64| {
        let duration = Duration::try_from_secs_f64(ms / 1e3).ok();
        let duration = duration.filter(|duration| *duration <= LONGEST);
        duration.ok_or_else(|| {
            let longest = LONGEST.as_millis();
            format!("{what}_{side}_ms: expected 0 to {longest}, not {ms:?}")
        })
    };
    let latency_of = |what, ms| {
        let latency = duration(what, ms)?;
        if latency.is_zero() {
            return Err(format!("{what}_{side}_ms: expected above 0, not {ms:?}"));
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
        latency: latency_of("latency", latency)?,
        std: std.map(|ms| duration("std", ms)).transpose()?,
        alone: alone.map(|ms| latency_of("alone", ms)).transpose()?,
    })
}

impl PairTable {
    /// Reads the table. Its columns are `model_a`, `model_b`, `batch_a`, `batch_b`, `share_a_pct`, `share_b_pct`, `latency_a_ms` and
    /// `latency_b_ms`; and, where it was measured, `std_a_ms`, `std_b_ms`, `alone_a_ms` and `alone_b_ms`.
    ///
    /// # Errors
    /// The first line that cannot be read.
    pub fn from_csv(text: &str) -> Result<Self, PairTableError> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
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

    /// Writes the table. [`PairTable::from_csv`] reads it back.
    pub fn to_csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for pair in &self.pairs {
            let row = CsvRow::print(pair);
            writer
                .serialize(row)
                .expect("numbers and names are CSV cells");
        }
        let bytes = writer.into_inner().expect("writing to memory cannot fail");
        String::from_utf8(bytes).expect("names are UTF-8")
    }

    /// What was seen of devices of this kind, for [`crate::SlowdownModel`]: both replicas always active.
    pub fn observations(
        &self,
        kind: &DeviceKind,
        profiles: &ProfileTable,
    ) -> Vec<DeviceObservation> {
        let observation = |pair: &[PairMember; 2]| DeviceObservation {
            kind: kind.clone(),
            replicas: pair
                .iter()
                .map(|member| member.observed(kind, profiles))
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
    fn what_was_measured_of_pairs_is_learned() {
        let profiles = ProfileTable::from_csv(PROFILES).unwrap();
        let kind: DeviceKind = "T4".parse().unwrap();
        let table = PairTable::from_csv(PAIRS).unwrap();
        let observations = table.observations(&kind, &profiles);
        // 15 / 10, 30 / 20, 12 / 10, and 12.5 by the profile's 10.
        let slowdowns: Vec<f64> = observations
            .iter()
            .flat_map(|of| of.replicas.iter().map(|replica| replica.slowdown))
            .collect();
        assert_eq!(slowdowns, [1.5, 1.5, 1.2, 1.25]);
        assert_eq!(observations[1].replicas[0].compute_share, None);
        let learned = SlowdownModel::learned(&observations[..1], &profiles);
        let expected = learned.expected_of(&observations[0], &profiles);
        for slowdown in expected {
            assert!((slowdown.mean - 1.5).abs() < 0.05, "{slowdown:?}");
        }
    }

    #[test]
    fn a_latency_alone_that_nobody_knows_teaches_nothing_of_the_replica() {
        let none = ProfileTable::default();
        let table = PairTable::from_csv(PAIRS).unwrap();
        let observed = &table.observations(&"T4".parse().unwrap(), &none)[1].replicas;
        assert_eq!((observed[0].batches, observed[1].batches), (BATCHES, 0));
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
