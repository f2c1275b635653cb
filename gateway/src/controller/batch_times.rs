//! The times of batches in the form of the API.

use packhorse_api::{BatchTimeView, LearnedTimeView};
use packhorse_cluster::{ModelId, ModelName};
use packhorse_control::{BatchTime, CommandError};

use super::task::Task;

impl Task {
    /// Returns the times of the batches of a model in all its versions, in its profiles and as they were observed.
    pub(super) fn batch_time_views(
        &self,
        name: &ModelName,
    ) -> Result<Vec<BatchTimeView>, CommandError> {
        let controller = self.controller();
        controller.find_model(name, None)?;
        let versions = controller.models().map(|(id, _)| id);
        let versions = versions.filter(|id| id.name == *name);
        let times = versions.flat_map(|id| {
            let times = controller.batch_times(id).into_iter();
            times.map(move |time| view(id, &time))
        });
        Ok(times.collect())
    }
}

fn view(id: &ModelId, time: &BatchTime) -> BatchTimeView {
    let profile_ms = time.profile.as_secs_f64() * 1e3;
    let contradicts_profile = time.contradicts_profile();
    BatchTimeView {
        model: id.name.clone(),
        version: id.version,
        device_kind: time.kind.clone(),
        batch_size: time.batch_size,
        profile_ms,
        source: time.source,
        learned: time.learned.map(|learned| LearnedTimeView {
            latency_ms: profile_ms * learned.ratio,
            alone_ms: learned.alone.map(|alone| profile_ms * alone),
            batches: learned.batches,
            age_s: learned.age.as_secs_f64(),
            contradicts_profile,
        }),
    }
}
