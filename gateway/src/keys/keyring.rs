//! All keys: made, rotated, deleted and looked up.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_api::{
    AuditActor, CreatedKey, KeyChange, KeyModelLimit, KeyRequest, KeyRotation, KeyView, Scope,
};
use packhorse_serving::TenantKey;
use serde_json::json;

use super::{
    key::{Key, KeyCounts, KeyRecord, KeyRefusal, KeyUse},
    latest_time::LatestTime,
    secret::{KeyHash, id_of, random_id, random_key},
};
use crate::{
    audit::Act,
    state_dir::SecretError,
    store::{Store, StoreError, unix_ms},
    tasks::Tasks,
};

/// The most keys.
const MAX_KEYS: usize = 10_000;
/// The most scopes of a key.
const MAX_SCOPES: usize = 64;
/// The most characters of a name.
const MAX_NAME: usize = 128;
/// The largest rate of a key, in requests/s.
const MAX_RATE: f64 = 1e6;
/// The longest overlap of a rotation, in seconds: 30 days.
const MAX_OVERLAP: u32 = 30 * 24 * 3600;
/// The time between two writes of when keys were last used.
const WRITE_USES_EVERY: Duration = Duration::from_mins(1);

/// All keys. Clones share them.
#[derive(Clone, Debug)]
pub struct Keyring {
    keys: Arc<RwLock<BTreeMap<String, Arc<Key>>>>,
    /// The tenants so far. Number 0 is that of requests without a key.
    tenants: Arc<AtomicU32>,
    latest: LatestTime,
    store: Store,
}

/// The reason why a key cannot be made, changed or found.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A field is out of its limits.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field.
        field: String,
        /// The violated limit.
        problem: String,
    },
    /// No key has this identity.
    #[error("there is no key {0}")]
    Unknown(String),
    /// There are too many keys.
    #[error("there are {MAX_KEYS} keys, which is the most; delete one first")]
    TooMany,
    /// No randomness could be had.
    #[error(transparent)]
    Random(#[from] SecretError),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The owner of a key, on the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyOwner {
    /// The key's identity.
    pub(crate) id: String,
    /// The fingerprint of the secret that the owner has.
    pub(crate) secret: String,
    /// The key's name.
    pub(crate) name: String,
    /// The rights of the key.
    pub(crate) scope: AdminScope,
}

/// The rights of a key on the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminScope {
    /// May do everything.
    Admin,
    /// May read.
    Read,
    /// May do nothing there.
    None,
}

impl Keyring {
    /// Reads all keys, and begins to write when they are used.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn open(store: Store, tasks: &Tasks) -> Result<Self, StoreError> {
        let records = store.keys().await?;
        let keyring = Self {
            keys: Arc::default(),
            tenants: Arc::default(),
            latest: LatestTime::default(),
            store,
        };
        for record in records {
            keyring.insert(record);
        }
        let writer = keyring.clone();
        tasks.spawn("key use writer", async move {
            let mut ticks = tokio::time::interval(WRITE_USES_EVERY);
            // The task ends with the last other handle.
            while Arc::strong_count(&writer.keys) > 1 {
                ticks.tick().await;
                if let Err(e) = writer.write_uses().await {
                    tracing::warn!(error = %e, "the times of the keys' last use are not stored");
                }
            }
        });
        Ok(keyring)
    }

    /// Stores when the keys were last used.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn write_uses(&self) -> Result<(), StoreError> {
        let used: Vec<Arc<Key>> = self.with(|keys| keys.values().cloned().collect());
        for key in used {
            let last_used = key.limits.last_used_ms.load(Relaxed);
            if last_used != key.limits.stored_use_ms.load(Relaxed) {
                self.store
                    .set_key_use(&key.record.view.id, last_used)
                    .await?;
                key.limits.stored_use_ms.store(last_used, Relaxed);
            }
        }
        Ok(())
    }

    /// Makes and stores a key.
    ///
    /// # Errors
    /// If a field is out of its limits, there are too many keys, or the database fails.
    pub async fn create(
        &self,
        actor: AuditActor,
        request: KeyRequest,
    ) -> Result<CreatedKey, KeyError> {
        validate(&request)?;
        if self.with(|keys| keys.len()) >= MAX_KEYS {
            return Err(KeyError::TooMany);
        }
        let id = random_id()?;
        let key = random_key(&id)?;
        let record = KeyRecord {
            view: KeyView {
                id,
                name: request.name,
                scopes: request.scopes,
                created_at_ms: unix_ms(),
                expires_at_ms: request.expires_at_ms,
                rate_rps: request.rate_rps,
                max_in_flight: request.max_in_flight,
                model_limits: request.model_limits,
                last_used_at_ms: None,
            },
            hash: KeyHash::of(&key),
            previous: None,
        };
        let view = record.view.clone();
        let act = Act::new(actor, "key.create", &view.id).with(json!({
            "name": view.name,
            "scopes": view.scopes,
            "expires_at_ms": view.expires_at_ms,
            "rate_rps": view.rate_rps,
            "max_in_flight": view.max_in_flight,
            "model_limits": view.model_limits,
        }));
        // Two keys of the same identity are refused by the store.
        self.store.acting(act).insert_key(&record).await?;
        self.insert(record);
        Ok(CreatedKey { key, view })
    }

    /// Replaces the secret of a key. The former one stays valid for the overlap.
    ///
    /// # Errors
    /// If there is no such key, the overlap is too long, or the database fails.
    pub async fn rotate(
        &self,
        actor: AuditActor,
        id: &str,
        rotation: KeyRotation,
    ) -> Result<CreatedKey, KeyError> {
        if rotation.overlap_s > MAX_OVERLAP {
            return Err(invalid("overlap_s", format!("at most {MAX_OVERLAP} s")));
        }
        let before = self.find(id)?;
        let key = random_key(id)?;
        let until = unix_ms().saturating_add(i64::from(rotation.overlap_s) * 1000);
        let record = KeyRecord {
            hash: KeyHash::of(&key),
            previous: Some((before.record.hash, until)),
            view: before.view(),
        };
        let act = Act::new(actor, "key.rotate", &id).with(json!({"overlap_s": rotation.overlap_s}));
        self.store.acting(act).update_key(&record).await?;
        // It may have been deleted, or its limits changed, meanwhile.
        let view = self.with(|keys| {
            let now = keys.get_mut(id)?;
            let view = now.view();
            let record = KeyRecord {
                view: view.clone(),
                ..record
            };
            *now = Arc::new(Key::with_limits(record, Arc::clone(&now.limits)));
            Some(view)
        });
        let view = view.ok_or_else(|| KeyError::Unknown(id.to_owned()))?;
        Ok(CreatedKey { key, view })
    }

    /// Changes the limits of a key.
    ///
    /// # Errors
    /// If there is no such key, a field is out of its limits, or the database fails.
    pub async fn change(
        &self,
        actor: AuditActor,
        id: &str,
        change: KeyChange,
    ) -> Result<KeyView, KeyError> {
        let before = self.find(id)?.view();
        let act = Act::new(actor, "key.change", &id).with(json!(change));
        let act = Act {
            before: Some(json!({
                "rate_rps": before.rate_rps,
                "max_in_flight": before.max_in_flight,
                "model_limits": before.model_limits,
            })),
            ..act
        };
        let changed = KeyView {
            rate_rps: change.rate_rps.unwrap_or(before.rate_rps),
            max_in_flight: change.max_in_flight.unwrap_or(before.max_in_flight),
            model_limits: change.model_limits.unwrap_or(before.model_limits),
            ..before
        };
        validate_limits(
            changed.rate_rps,
            changed.max_in_flight,
            &changed.model_limits,
        )?;
        self.store.acting(act).set_key_limits(&changed).await?;
        // It may have been deleted or rotated meanwhile.
        self.with(|keys| {
            if let Some(key) = keys.get_mut(id) {
                *key = Arc::new(key.with_limits_of(&changed));
            }
        });
        Ok(changed)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// If there is no such key, or the database fails.
    pub async fn delete(&self, actor: AuditActor, id: &str) -> Result<(), KeyError> {
        self.find(id)?;
        let act = Act::new(actor, "key.delete", &id);
        self.store.acting(act).delete_key(id).await?;
        self.with(|keys| keys.remove(id));
        Ok(())
    }

    /// Returns all keys, without their secrets.
    pub fn all(&self) -> Vec<KeyView> {
        self.with(|keys| keys.values().map(|key| key.view()).collect())
    }

    /// Returns a key, without its secret.
    ///
    /// # Errors
    /// If there is no such key.
    pub fn get(&self, id: &str) -> Result<KeyView, KeyError> {
        Ok(self.find(id)?.view())
    }

    /// Returns identity, name and counts of each key that was used since the gateway's start.
    pub(crate) fn counts(&self) -> Vec<(String, String, KeyCounts)> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let counts = keys.values().map(|key| {
            let view = &key.record.view;
            (view.id.clone(), view.name.clone(), key.limits.counts())
        });
        counts
            .filter(|(_, _, counts)| *counts != KeyCounts::default())
            .collect()
    }

    /// Counts an inference request with a key to a model, or to none. `None` if the text is no valid key.
    pub fn use_for(&self, text: &str, model: Option<&str>) -> Option<Result<KeyUse, KeyRefusal>> {
        Some(self.authenticate(text)?.use_for(model))
    }

    /// Returns the tenant of a key; `None` if the text is no valid key.
    pub(crate) fn tenant(&self, text: &str) -> Option<TenantKey> {
        Some(self.authenticate(text)?.limits.tenant())
    }

    /// Returns the identity of a key; `None` if the text is no valid key.
    pub(crate) fn id(&self, text: &str) -> Option<String> {
        Some(self.authenticate(text)?.record.view.id.clone())
    }

    /// Returns the name of the key with this identity.
    pub(crate) fn name(&self, id: &str) -> Option<String> {
        Some(self.find(id).ok()?.record.view.name.clone())
    }

    /// Returns the identities of the keys with this identity or this name; the text itself if there is none, as of a key that was deleted.
    pub(crate) fn ids_named(&self, text: &str) -> Vec<String> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let views = keys.values().map(|key| &key.record.view);
        let named = views.filter(|view| view.id == text || view.name == text);
        let mut ids: Vec<String> = named.map(|view| view.id.clone()).collect();
        if ids.is_empty() {
            ids.push(text.to_owned());
        }
        ids
    }

    /// Returns the owner of a key; `None` if the text is no valid key.
    pub(crate) fn owner(&self, text: &str) -> Option<KeyOwner> {
        let secret = KeyHash::of(text).fingerprint();
        Some(KeyOwner::of(&*self.authenticate(text)?, secret))
    }

    /// Returns the owner of the key with this identity whose secret has this fingerprint; `None` if it is not valid any more.
    pub(crate) fn owner_by_id(&self, id: &str, secret: &str) -> Option<KeyOwner> {
        let key = self.find(id).ok()?;
        let now = self.now_ms();
        if key.is_expired(now) || !key.has_secret(secret, now) {
            return None;
        }
        key.limits.last_used_ms.store(now, Relaxed);
        Some(KeyOwner::of(&key, secret.to_owned()))
    }

    /// Returns the time by which keys and sessions expire, which a clock that is set back does not change.
    pub(crate) fn now_ms(&self) -> i64 {
        self.latest.now_ms()
    }

    fn insert(&self, record: KeyRecord) {
        let number = self.tenants.fetch_add(1, Relaxed).wrapping_add(1);
        let tenant = TenantKey(number.into());
        let id = record.view.id.clone();
        let key = Arc::new(Key::new(record, tenant));
        self.with(|keys| keys.insert(id, key));
    }

    fn authenticate(&self, text: &str) -> Option<Arc<Key>> {
        let key = self.find(id_of(text)?).ok()?;
        let now = self.now_ms();
        if !key.matches(&KeyHash::of(text), now) || key.is_expired(now) {
            return None;
        }
        key.limits.last_used_ms.store(now, Relaxed);
        Some(key)
    }

    fn find(&self, id: &str) -> Result<Arc<Key>, KeyError> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.get(id).cloned();
        key.ok_or_else(|| KeyError::Unknown(id.chars().take(MAX_NAME).collect()))
    }

    /// Accesses the keys. The lock is never held over an await.
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, Arc<Key>>) -> T) -> T {
        f(&mut self.keys.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KeyOwner {
    fn of(key: &Key, secret: String) -> Self {
        let view = &key.record.view;
        let scope = if view.scopes.contains(&Scope::Admin) {
            AdminScope::Admin
        } else if view.scopes.contains(&Scope::Read) {
            AdminScope::Read
        } else {
            AdminScope::None
        };
        Self {
            id: view.id.clone(),
            secret,
            name: view.name.clone(),
            scope,
        }
    }
}

fn invalid(field: impl Into<String>, problem: impl Into<String>) -> KeyError {
    KeyError::Invalid {
        field: field.into(),
        problem: problem.into(),
    }
}

fn validate(request: &KeyRequest) -> Result<(), KeyError> {
    let name = request.name.chars().count();
    if !(1..=MAX_NAME).contains(&name) || request.name.chars().any(char::is_control) {
        let problem =
            format!("expected 1 to {MAX_NAME} characters, none of them a control character");
        return Err(invalid("name", problem));
    }
    if !(1..=MAX_SCOPES).contains(&request.scopes.len()) {
        return Err(invalid("scopes", format!("expected 1 to {MAX_SCOPES}")));
    }
    if request
        .expires_at_ms
        .is_some_and(|expires| expires <= unix_ms())
    {
        return Err(invalid("expires_at_ms", "this time is over"));
    }
    validate_limits(
        request.rate_rps,
        request.max_in_flight,
        &request.model_limits,
    )
}

/// Checks the limits of a key, and those for single models.
fn validate_limits(
    rate_rps: Option<f64>,
    max_in_flight: Option<u32>,
    model_limits: &[KeyModelLimit],
) -> Result<(), KeyError> {
    validate_limit("", rate_rps, max_in_flight)?;
    if model_limits.len() > MAX_SCOPES {
        return Err(invalid(
            "model_limits",
            format!("expected at most {MAX_SCOPES}"),
        ));
    }
    for (place, limit) in model_limits.iter().enumerate() {
        let field = format!("model_limits[{place}].");
        let pattern = limit.model.chars().count();
        if !(1..=MAX_NAME).contains(&pattern) {
            let problem = format!("expected 1 to {MAX_NAME} characters");
            return Err(invalid(format!("{field}model"), problem));
        }
        validate_limit(&field, limit.rate_rps, limit.max_in_flight)?;
    }
    Ok(())
}

/// Checks a limit whose fields' names begin like this.
fn validate_limit(
    field: &str,
    rate_rps: Option<f64>,
    max_in_flight: Option<u32>,
) -> Result<(), KeyError> {
    if rate_rps.is_some_and(|rate| !(rate > 0.0 && rate <= MAX_RATE)) {
        let problem = format!("expected a number above 0, at most {MAX_RATE}");
        return Err(invalid(format!("{field}rate_rps"), problem));
    }
    if max_in_flight == Some(0) {
        return Err(invalid(
            format!("{field}max_in_flight"),
            "expected at least 1",
        ));
    }
    Ok(())
}
