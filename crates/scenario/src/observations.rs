//! The CSV of observations of devices.

use packhorse_cluster::{ComputeShare, DeviceKind, DeviceObservation, ModelId, ReplicaObservation};
use serde::{Deserialize, Serialize};

/// A replica of an observed device.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// The number of the observation. The rows of one observation stand together.
    observation: usize,
    device_kind: DeviceKind,
    model: ModelId,
    compute_share_pct: Option<ComputeShare>,
    batches: u64,
    mean_rows: f64,
    busy: f64,
    slowdown: f64,
}

/// The first row of observations that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ObservationsError {
    line: u64,
    problem: String,
}

/// Writes observations as CSV, with a row per replica. [`observations_from_csv`] reads it. Observations without replicas, which teach nothing, have
/// no row.
pub fn observations_to_csv(observations: &[DeviceObservation]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (number, device) in observations.iter().enumerate() {
        for replica in &device.replicas {
            let row = Row {
                observation: number,
                device_kind: device.kind.clone(),
                model: replica.model.clone(),
                compute_share_pct: replica.compute_share,
                batches: replica.batches,
                mean_rows: replica.mean_rows,
                busy: replica.busy,
                slowdown: replica.slowdown,
            };
            writer
                .serialize(row)
                .expect("numbers and names are CSV cells");
        }
    }
    let text = writer.into_inner().expect("writing to memory cannot fail");
    String::from_utf8(text).expect("names are ASCII")
}

/// Reads observations from CSV.
///
/// # Errors
/// Names the first line that cannot be read.
pub fn observations_from_csv(text: &str) -> Result<Vec<DeviceObservation>, ObservationsError> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut observations: Vec<(usize, DeviceObservation)> = Vec::new();
    for (line, row) in (2..).zip(reader.deserialize::<Row>()) {
        let error = |problem: String| ObservationsError { line, problem };
        let row = row.map_err(|e| error(e.to_string()))?;
        let replica = ReplicaObservation {
            model: row.model,
            compute_share: row.compute_share_pct,
            batches: row.batches,
            mean_rows: row.mean_rows,
            busy: row.busy,
            slowdown: row.slowdown,
        };
        match observations.last_mut() {
            Some((number, device)) if *number == row.observation => {
                if device.kind != row.device_kind {
                    let expected = &device.kind;
                    return Err(error(format!(
                        "device_kind: expected {expected}, as in the row before, not {}",
                        row.device_kind
                    )));
                }
                device.replicas.push(replica);
            }
            _ => observations.push((
                row.observation,
                DeviceObservation {
                    kind: row.device_kind,
                    replicas: vec![replica],
                },
            )),
        }
    }
    Ok(observations.into_iter().map(|(_, device)| device).collect())
}
