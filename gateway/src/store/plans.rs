//! Plans as they were adopted.

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, Generation, ModelId, ReplicaId, RequestsPerSecond,
};
use serde::{Deserialize, Serialize};
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, to_json, unix_ms, unsigned};

/// A plan as it was adopted, with names instead of the indices of the problem that it answered.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPlan {
    /// Its number.
    pub generation: Generation,
    /// The policy that made it.
    pub policy: String,
    /// Why it was made.
    pub reason: String,
    /// How long the policy took, in milliseconds.
    pub solve_ms: f64,
    /// When it was stored, in milliseconds since 1970.
    pub created_ms: i64,
    /// Its replicas, by model, then device.
    pub replicas: Vec<StoredReplica>,
    /// What it promises, by model.
    pub models: Vec<StoredForecast>,
}

/// A replica of an adopted plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredReplica {
    /// Its identity. A replica that a plan left alone keeps the one it had.
    pub id: ReplicaId,
    /// What it serves.
    pub model: ModelId,
    /// Where.
    pub device: DeviceId,
    /// What that is.
    pub device_kind: DeviceKind,
    /// The most rows of one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors it may use; none sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// How often it has its turn, in milliseconds, where the policy shares a device in time.
    pub duty_cycle_ms: Option<f64>,
}

/// What an adopted plan promises a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredForecast {
    /// The model.
    pub model: ModelId,
    /// The rate that was planned for.
    pub rate: RequestsPerSecond,
    /// Requests per second within the SLO, by the policy's own estimate.
    pub goodput: RequestsPerSecond,
    /// Why it is not, or not fully, served.
    pub shortfall: Option<String>,
}

impl Store {
    /// How many plans are kept.
    pub const PLANS_KEPT: u64 = 1000;

    /// Adds a plan and forgets those too old to be kept. All or none.
    ///
    /// # Errors
    /// If the database fails, or the generation exists.
    pub async fn insert_plan(&self, plan: &StoredPlan) -> Result<(), StoreError> {
        let generation = i64::try_from(plan.generation.0).unwrap_or(i64::MAX);
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "INSERT INTO plans (generation, policy, reason, solve_ms, created_ms, replicas, models) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(generation)
        .bind(plan.policy.clone())
        .bind(plan.reason.clone())
        .bind(plan.solve_ms)
        .bind(plan.created_ms)
        .bind(to_json(&plan.replicas))
        .bind(to_json(&plan.models))
        .execute(&mut *transaction)
        .await?;
        sqlx::query("DELETE FROM plans WHERE generation <= $1")
            .bind(generation.saturating_sub(Self::PLANS_KEPT.cast_signed()))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The newest plan.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn newest_plan(&self) -> Result<Option<StoredPlan>, StoreError> {
        sqlx::query("SELECT * FROM plans ORDER BY generation DESC LIMIT 1")
            .fetch_optional(&self.pool)
            .await?
            .as_ref()
            .map(read)
            .transpose()
    }

    /// One plan, if it is kept.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn plan(&self, generation: Generation) -> Result<Option<StoredPlan>, StoreError> {
        let Ok(generation) = i64::try_from(generation.0) else {
            return Ok(None);
        };
        sqlx::query("SELECT * FROM plans WHERE generation = $1")
            .bind(generation)
            .fetch_optional(&self.pool)
            .await?
            .as_ref()
            .map(read)
            .transpose()
    }

    /// The newest plans before a generation (all, if none is given), newest first, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn plans(
        &self,
        before: Option<Generation>,
        limit: u32,
    ) -> Result<Vec<StoredPlan>, StoreError> {
        let before = before
            .and_then(|generation| i64::try_from(generation.0).ok())
            .unwrap_or(i64::MAX);
        let rows = sqlx::query(
            "SELECT * FROM plans WHERE generation < $1 ORDER BY generation DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }
}

impl StoredPlan {
    /// The moment now, as [`StoredPlan::created_ms`] counts it.
    pub fn now_ms() -> i64 {
        unix_ms()
    }
}

fn read(row: &AnyRow) -> Result<StoredPlan, StoreError> {
    Ok(StoredPlan {
        generation: Generation(unsigned(row, "plans", "generation")?),
        policy: row.try_get("policy")?,
        reason: row.try_get("reason")?,
        solve_ms: row.try_get("solve_ms")?,
        created_ms: row.try_get("created_ms")?,
        replicas: json(row, "plans", "replicas")?,
        models: json(row, "plans", "models")?,
    })
}
