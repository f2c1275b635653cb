//! One key: its record, and how much of its limits is used.

use std::{
    iter,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::http::StatusCode;
use governor::{
    DefaultDirectRateLimiter, Quota,
    clock::{Clock as _, DefaultClock},
};
use packhorse_api::{KeyView, Scope};
use packhorse_serving::TenantKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wildmatch::WildMatch;

use super::secret::KeyHash;
use crate::tenant::TenantName;

/// A key as the store has it.
#[derive(Clone, Debug)]
pub struct KeyRecord {
    /// The properties. The time of the last use is that of the last write.
    pub view: KeyView,
    /// The hash of the key.
    pub hash: KeyHash,
    /// The hash before the last rotation, and the Unix time in milliseconds until which it is valid.
    pub previous: Option<(KeyHash, i64)>,
}

/// A key in memory.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) record: KeyRecord,
    models: ModelScope,
    /// The limits' state, which outlives a rotation.
    pub(super) limits: Arc<KeyLimits>,
}

/// The patterns of the names of the models that a key may use.
#[derive(Clone, Debug)]
pub(crate) struct ModelScope(Arc<[WildMatch]>);

impl ModelScope {
    /// Returns true if one of the patterns matches the model's name.
    pub(crate) fn allows(&self, model: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(model))
    }
}

/// The limits of a key, and how much of them is used.
#[derive(Debug)]
pub(super) struct KeyLimits {
    /// The key's tenant: its requests share a model with those of other keys.
    tenant: TenantKey,
    /// The key's identity.
    id: Arc<str>,
    own: Limit,
    /// The limits for the models of a pattern.
    of_models: Vec<(WildMatch, Limit)>,
    /// The Unix time of the last use in milliseconds; 0 for never.
    pub(super) last_used_ms: AtomicI64,
    /// The time of the last use as it is stored.
    pub(super) stored_use_ms: AtomicI64,
    /// The requests so far, which a change of the limits leaves.
    totals: Arc<Totals>,
}

/// The requests of a key.
#[derive(Debug, Default)]
struct Totals {
    /// The requests by class of their answer.
    requests: [AtomicU64; RESPONSE_CLASSES.len()],
    /// The total time of the requests, in nanoseconds.
    nanos: AtomicU64,
}

/// A limit, and how much of it is used.
#[derive(Debug)]
struct Limit {
    /// The pattern of the models that it is for; `None` for all.
    model: Option<String>,
    rate_rps: f64,
    rate: Option<DefaultDirectRateLimiter>,
    max_in_flight: u32,
    in_flight: Option<Arc<Semaphore>>,
}

/// The classes of answers to a key's requests.
pub(crate) const RESPONSE_CLASSES: [&str; 4] = ["2xx", "4xx", "429", "5xx"];

/// The requests of a key since the gateway's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyCounts {
    /// Their number, by [`RESPONSE_CLASSES`].
    pub(crate) requests: [u64; RESPONSE_CLASSES.len()],
    /// Their total time in nanoseconds.
    pub(crate) nanos: u64,
}

impl KeyCounts {
    /// Adds the requests of another key.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, requests) in self.requests.iter_mut().zip(other.requests) {
            *sum += requests;
        }
        self.nanos += other.nanos;
    }
}

/// The use of a key by a request. The key's limits of requests at the same time count it until it, or what it holds of them, is dropped.
#[derive(Debug)]
pub struct KeyUse {
    limits: Arc<KeyLimits>,
    models: ModelScope,
    permits: Vec<OwnedSemaphorePermit>,
}

impl KeyUse {
    /// Returns the tenant that the request counts for.
    pub(crate) fn tenant(&self) -> TenantKey {
        self.limits.tenant
    }

    /// Returns the name of that tenant.
    pub(crate) fn tenant_name(&self) -> TenantName {
        TenantName::Key(Arc::clone(&self.limits.id))
    }

    /// Returns the models that the key allows.
    pub(crate) fn models(&self) -> &ModelScope {
        &self.models
    }

    /// Counts the request, whose model was not known when it began, for a model.
    ///
    /// # Errors
    /// The key does not allow the model, or a limit of its for such models is reached.
    pub(crate) fn name_model(&mut self, model: &str) -> Result<(), KeyRefusal> {
        let id = &self.limits.id;
        if !self.models.allows(model) {
            return Err(KeyRefusal::Model(id.to_string(), model.to_owned()));
        }
        let limits = || self.limits.of_model(model);
        let permits = limits().map(|limit| limit.enter(id));
        let permits: Vec<_> = permits.collect::<Result<_, _>>()?;
        limits().try_for_each(|limit| limit.check_rate(id))?;
        self.permits.extend(permits.into_iter().flatten());
        Ok(())
    }

    /// Counts the request, which was answered with this status after this time. Returns what counts it as in flight until it is dropped; `None`
    /// if the key has no such limit.
    pub(crate) fn answered(
        self,
        status: StatusCode,
        after: Duration,
    ) -> Option<Vec<OwnedSemaphorePermit>> {
        self.limits.count(status, after);
        Some(self.permits).filter(|permits| !permits.is_empty())
    }
}

/// The reason why a key does not allow a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// The key has no scope for the model.
    #[error("key {0} may not send requests to model \"{1}\"")]
    Model(String, String),
    /// The key has no scope for inference at all.
    #[error("key {0} may not send inference requests")]
    Inference(String),
    /// The key sends more requests per second than it may.
    #[error("key {id} sends more than {rate_rps} requests/s{to}", to = to(model.as_deref()))]
    Rate {
        /// The key's identity.
        id: String,
        /// The limit.
        rate_rps: String,
        /// The pattern of the models that the limit is for; `None` for all.
        model: Option<String>,
        /// The time after which the next request is allowed.
        retry_after: Duration,
    },
    /// The key has as many requests in flight as it may.
    #[error("key {id} has {limit} requests in flight{to}, its limit", to = to(model.as_deref()))]
    InFlight {
        /// The key's identity.
        id: String,
        /// The limit.
        limit: u32,
        /// The pattern of the models that the limit is for; `None` for all.
        model: Option<String>,
    },
}

fn to(model: Option<&str>) -> String {
    let to = |pattern| format!(" to models \"{pattern}\"");
    model.map(to).unwrap_or_default()
}

impl Limit {
    fn new(model: Option<String>, rate_rps: Option<f64>, max_in_flight: Option<u32>) -> Self {
        let rate = rate_rps.and_then(|rate| {
            let quota = Quota::with_period(Duration::try_from_secs_f64(1.0 / rate).ok()?)?;
            let burst = NonZeroU32::new(rate.ceil() as u32).unwrap_or(NonZeroU32::MIN);
            Some(DefaultDirectRateLimiter::direct(quota.allow_burst(burst)))
        });
        let in_flight = max_in_flight.map(|limit| {
            let permits = usize::try_from(limit).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
        });
        Self {
            model,
            rate_rps: rate_rps.unwrap_or_default(),
            rate,
            max_in_flight: max_in_flight.unwrap_or_default(),
            in_flight,
        }
    }

    /// Counts a request of a key as in flight until the permit is dropped.
    fn enter(&self, id: &str) -> Result<Option<OwnedSemaphorePermit>, KeyRefusal> {
        let Some(permits) = &self.in_flight else {
            return Ok(None);
        };
        let permit = Arc::clone(permits).try_acquire_owned();
        permit.map(Some).map_err(|_| KeyRefusal::InFlight {
            id: id.to_owned(),
            limit: self.max_in_flight,
            model: self.model.clone(),
        })
    }

    /// Counts a request of a key for the rate.
    fn check_rate(&self, id: &str) -> Result<(), KeyRefusal> {
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        rate.check().map_err(|not_until| KeyRefusal::Rate {
            id: id.to_owned(),
            rate_rps: self.rate_rps.to_string(),
            model: self.model.clone(),
            retry_after: not_until.wait_time_from(DefaultClock::default().now()),
        })
    }
}

impl Key {
    pub(super) fn new(record: KeyRecord, tenant: TenantKey) -> Self {
        let limits = Arc::new(KeyLimits::new(&record.view, tenant));
        Self::with_limits(record, limits)
    }

    /// Creates a key that has the limits' state of its former self.
    pub(super) fn with_limits(record: KeyRecord, limits: Arc<KeyLimits>) -> Self {
        let patterns = record.view.scopes.iter().filter_map(|scope| match scope {
            Scope::Infer(pattern) => Some(WildMatch::new(pattern)),
            Scope::Read | Scope::Admin => None,
        });
        Self {
            models: ModelScope(patterns.collect()),
            limits,
            record,
        }
    }

    /// Returns the key with the limits of a view, of which nothing is used yet.
    pub(super) fn with_limits_of(&self, view: &KeyView) -> Self {
        let mut record = self.record.clone();
        record.view.rate_rps = view.rate_rps;
        record.view.max_in_flight = view.max_in_flight;
        record.view.model_limits.clone_from(&view.model_limits);
        let limits = KeyLimits {
            last_used_ms: AtomicI64::new(self.limits.last_used_ms.load(Relaxed)),
            stored_use_ms: AtomicI64::new(self.limits.stored_use_ms.load(Relaxed)),
            totals: Arc::clone(&self.limits.totals),
            ..KeyLimits::new(&record.view, self.limits.tenant)
        };
        Self::with_limits(record, Arc::new(limits))
    }

    /// Returns true if this is the hash of the key's text at this Unix time.
    pub(super) fn matches(&self, hash: &KeyHash, now_ms: i64) -> bool {
        let previous = self.record.previous.filter(|(_, until)| now_ms < *until);
        // Both are compared in any case, so that the time does not tell which one it was.
        let is_present = self.record.hash.matches(hash);
        let is_previous = previous.is_some_and(|(previous, _)| previous.matches(hash));
        is_present | is_previous
    }

    /// Returns true if a valid text of the key has this fingerprint at this Unix time.
    pub(super) fn has_secret(&self, fingerprint: &str, now_ms: i64) -> bool {
        let previous = self.record.previous.filter(|(_, until)| now_ms < *until);
        let mut valid = iter::once(self.record.hash).chain(previous.map(|(hash, _)| hash));
        valid.any(|hash| hash.fingerprint() == fingerprint)
    }

    pub(super) fn is_expired(&self, now_ms: i64) -> bool {
        let expires = self.record.view.expires_at_ms;
        expires.is_some_and(|expires| expires <= now_ms)
    }

    /// Returns the properties with the time of the last use.
    pub(super) fn view(&self) -> KeyView {
        let last_used = self.limits.last_used_ms.load(Relaxed);
        KeyView {
            last_used_at_ms: (last_used > 0).then_some(last_used),
            ..self.record.view.clone()
        }
    }

    /// Counts an inference request to a model, or to none.
    pub(super) fn use_for(&self, model: Option<&str>) -> Result<KeyUse, KeyRefusal> {
        self.check(model)
            .inspect_err(|refusal| self.limits.count(refusal.status(), Duration::ZERO))
    }

    fn check(&self, model: Option<&str>) -> Result<KeyUse, KeyRefusal> {
        let view = &self.record.view;
        let id = || view.id.clone();
        match model {
            _ if self.models.0.is_empty() => return Err(KeyRefusal::Inference(id())),
            Some(model) if !self.models.allows(model) => {
                return Err(KeyRefusal::Model(id(), model.to_owned()));
            }
            _ => {}
        }
        let limits = || self.limits.of(model);
        // Only what may begin counts for the rates.
        let permits = limits().map(|limit| limit.enter(&view.id));
        let permits: Vec<_> = permits.collect::<Result<_, _>>()?;
        limits().try_for_each(|limit| limit.check_rate(&view.id))?;
        Ok(KeyUse {
            limits: Arc::clone(&self.limits),
            models: self.models.clone(),
            permits: permits.into_iter().flatten().collect(),
        })
    }
}

impl KeyRefusal {
    /// Returns the status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Model(..) | Self::Inference(_) => StatusCode::FORBIDDEN,
            Self::Rate { .. } | Self::InFlight { .. } => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl KeyLimits {
    pub(super) fn tenant(&self) -> TenantKey {
        self.tenant
    }

    /// Returns the limits that a request to a model, or to none, is within. Those of the model come first: what they refuse takes nothing from the
    /// rate for all models.
    fn of(&self, model: Option<&str>) -> impl Iterator<Item = &Limit> {
        let of_model = model.into_iter().flat_map(|model| self.of_model(model));
        of_model.chain([&self.own])
    }

    /// Returns the limits for the models of a pattern that a request to a model is within.
    fn of_model(&self, model: &str) -> impl Iterator<Item = &Limit> {
        let matching = self
            .of_models
            .iter()
            .filter(move |(pattern, _)| pattern.matches(model));
        matching.map(|(_, limit)| limit)
    }

    /// Counts a request.
    fn count(&self, status: StatusCode, after: Duration) {
        let class = match status {
            StatusCode::TOO_MANY_REQUESTS => 2,
            _ if status.is_server_error() => 3,
            _ if status.is_client_error() => 1,
            _ => 0,
        };
        self.totals.requests[class].fetch_add(1, Relaxed);
        let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.totals.nanos.fetch_add(nanos, Relaxed);
    }

    /// Returns the requests so far.
    pub(super) fn counts(&self) -> KeyCounts {
        let Totals { requests, nanos } = &*self.totals;
        KeyCounts {
            requests: requests.each_ref().map(|class| class.load(Relaxed)),
            nanos: nanos.load(Relaxed),
        }
    }

    fn new(view: &KeyView, tenant: TenantKey) -> Self {
        let of_models = view.model_limits.iter().map(|limit| {
            let model = limit.model.clone();
            let pattern = WildMatch::new(&model);
            (
                pattern,
                Limit::new(Some(model), limit.rate_rps, limit.max_in_flight),
            )
        });
        let used = view.last_used_at_ms.unwrap_or(0);
        Self {
            tenant,
            id: view.id.as_str().into(),
            own: Limit::new(None, view.rate_rps, view.max_in_flight),
            of_models: of_models.collect(),
            last_used_ms: AtomicI64::new(used),
            stored_use_ms: AtomicI64::new(used),
            totals: Arc::default(),
        }
    }
}
