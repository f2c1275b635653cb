//! The rows of profiles, with the names of the CSV columns.

use packhorse_cluster::{
    ByteCount, DeviceKind, ModelId, Percent, Profile, ProfileRow, ProfileSource, ProfileTable,
};
use serde::Serialize;

use crate::versioned_name;

/// A row of a profile as JSON, with the names of the CSV columns.
#[derive(Serialize)]
pub struct ProfileRowView {
    /// The model's name, with a version other than the first.
    pub model: String,
    /// The kind of device.
    pub device_kind: DeviceKind,
    /// The requests in a batch.
    pub batch_size: u32,
    /// The share of the multiprocessors, in percent.
    pub compute_share_pct: f64,
    /// The median latency of a batch.
    pub latency_ms: f64,
    /// The 99th percentile of it.
    pub latency_p99_ms: Option<f64>,
    /// The device memory of the process, in MiB.
    pub memory_mib: Option<f64>,
    /// The highest achieved occupancy of a kernel, in percent.
    pub achieved_occupancy_pct: Option<f64>,
    /// The mean achieved occupancy, weighted by duration, in percent.
    pub mean_occupancy_pct: Option<f64>,
    /// The mean utilisation of multiprocessors, weighted by duration, in percent.
    pub sm_utilization_pct: Option<f64>,
    /// Measured or estimated.
    pub source: ProfileSource,
    /// The shapes that were measured, where inputs vary.
    pub input_shapes: Option<String>,
}

impl ProfileRowView {
    /// Returns the rows of all profiles.
    pub fn of_table(profiles: &ProfileTable) -> Vec<Self> {
        let rows = profiles.iter().flat_map(|(model, kind, profile)| {
            let rows = profile.rows().iter();
            rows.map(move |row| Self::new(model, kind, row, profile))
        });
        rows.collect()
    }

    fn new(model: &ModelId, kind: &DeviceKind, row: &ProfileRow, profile: &Profile) -> Self {
        Self {
            model: versioned_name(&model.name, model.version),
            device_kind: kind.clone(),
            batch_size: row.batch_size,
            compute_share_pct: row.compute_share.get(),
            latency_ms: row.latency.as_secs_f64() * 1e3,
            latency_p99_ms: row.latency_p99.map(|latency| latency.as_secs_f64() * 1e3),
            memory_mib: row.memory.map(ByteCount::as_mib_f64),
            achieved_occupancy_pct: row.achieved_occupancy.map(Percent::get),
            mean_occupancy_pct: row.mean_occupancy.map(Percent::get),
            sm_utilization_pct: row.sm_utilization.map(Percent::get),
            source: profile.source(),
            input_shapes: profile.input_shapes().map(ToString::to_string),
        }
    }
}
