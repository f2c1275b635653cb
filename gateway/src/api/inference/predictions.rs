//! The cache of predictions, as requests use it.
//!
//! A request is looked for once it is checked, under the version that it goes to first, and its answer is kept once that was written: the outputs of
//! the model, from which classes, embeddings and the wanted outputs are made for each request anew.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use packhorse_api::{CACHE_HEADER, CacheUse};
use packhorse_cluster::Time;
use packhorse_protocol::Tensor;
use packhorse_serving::TenantKey;

use super::{state::Inference, work_pool::Party};
use crate::{
    driver::{OutputRows, ServedModel},
    prediction_cache::{InputDigest, KeptOutput, KeptOutputs, PredictionCache, PredictionKey},
};

/// The size of inputs or outputs in bytes from which on they are hashed or copied by the pool: 0.2 ms of work.
const LARGE: u64 = 256 << 10;

/// The use of the cache by a request.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// The inputs, if the cache was asked.
    inputs: Option<InputDigest>,
    /// The kept answer.
    found: Option<KeptOutputs>,
    /// The time that it took.
    pub(super) time: Duration,
}

/// An entry of the cache that is added once its answer was written.
#[derive(Debug)]
pub(super) struct PendingEntry {
    cache: PredictionCache,
    tenant: TenantKey,
    key: PredictionKey,
    outputs: KeptOutputs,
}

impl Lookup {
    /// Looks for the answer to a request, if its model has a cache. There is none for one whose deadline has passed.
    pub(super) async fn new(
        inference: &Inference,
        tenant: TenantKey,
        model: &ServedModel,
        inputs: &[Tensor],
        deadline: Time,
    ) -> Self {
        let cache = inference.data_plane.predictions();
        if !model.spec.cache || !cache.is_on() {
            return Self::default();
        }
        let clock = inference.data_plane.clock();
        let begun = clock.now();
        let bytes: u64 = inputs.iter().map(|input| input.data().len() as u64).sum();
        let digest = if bytes < LARGE {
            InputDigest::of(inputs)
        } else {
            let inputs = inputs.to_vec();
            let hash = move || InputDigest::of(&inputs);
            match inference.pool.parse(party(model, tenant), hash).await {
                Ok(digest) => digest,
                // Too many wait to be parsed: it is computed without the cache.
                Err(_) => return Self::default(),
            }
        };
        let key = PredictionKey {
            model: model.key,
            inputs: digest,
        };
        let now = clock.now();
        let found = (now < deadline).then(|| cache.get(now, tenant, &key));
        Self {
            inputs: Some(digest),
            found: found.flatten(),
            time: clock.now().saturating_since(begun),
        }
    }

    /// Returns what the cache had; none if it was not asked.
    pub(super) fn cache(&self) -> Option<CacheUse> {
        self.inputs?;
        Some(match self.found {
            Some(_) => CacheUse::Hit,
            None => CacheUse::Miss,
        })
    }

    /// Returns the kept outputs.
    pub(super) fn outputs(&self) -> Option<Vec<OutputRows>> {
        let kept = self.found.as_ref()?.outputs().iter().cloned();
        Some(
            kept.map(|KeptOutput { shape, data }| OutputRows { shape, data })
                .collect(),
        )
    }

    /// Returns the entry for a model's answer, if it has a cache and the answer is not too large.
    pub(super) async fn entry(
        &self,
        inference: &Inference,
        tenant: TenantKey,
        model: &ServedModel,
        outputs: &[OutputRows],
    ) -> Option<PendingEntry> {
        let inputs = self.inputs?;
        let cache = inference.data_plane.predictions();
        let bytes = outputs.iter().map(|rows| rows.data.len()).sum();
        if !model.spec.cache || !cache.takes(bytes) {
            return None;
        }
        let copy = |outputs: &[OutputRows]| {
            KeptOutputs::copy(outputs.iter().map(|rows| (&rows.shape, &rows.data)))
        };
        let outputs = if (bytes as u64) < LARGE {
            copy(outputs)
        } else {
            let outputs = outputs.to_vec();
            let copy = move || copy(&outputs);
            inference.pool.format(party(model, tenant), copy).await
        };
        Some(PendingEntry {
            cache: cache.clone(),
            tenant,
            key: PredictionKey {
                model: model.key,
                inputs,
            },
            outputs,
        })
    }
}

impl PendingEntry {
    /// Adds the entry.
    pub(super) fn add(self, now: Time) {
        self.cache.insert(now, self.tenant, self.key, self.outputs);
    }
}

/// Returns the use of the cache by a call of several requests: a hit if all of them are hits, and none if the model has no cache.
pub(super) fn of_call(parts: impl IntoIterator<Item = Option<CacheUse>>) -> Option<CacheUse> {
    let worse = |all, part| if part == CacheUse::Miss { part } else { all };
    parts.into_iter().flatten().reduce(worse)
}

/// Says in the headers of an answer what the cache had.
pub(super) fn tell(headers: &mut HeaderMap, cache: Option<CacheUse>) {
    if let Some(cache) = cache {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(cache.name()));
    }
}

fn party(model: &ServedModel, tenant: TenantKey) -> Party {
    Party {
        model: model.key,
        tenant,
    }
}
