//! Adopted plans.

use std::collections::BTreeSet;

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, Generation, ModelId, ReplicaId, RequestsPerSecond,
};
use serde::{Deserialize, Serialize};
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, to_json, unix_ms, unsigned};

/// An adopted plan, with names in place of the problem's indices.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPlan {
    /// The plan's number.
    pub generation: Generation,
    /// The policy that made the plan.
    pub policy: String,
    /// The reason why the plan was made, as text for people.
    pub reason: String,
    /// The time that the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The time at which the plan was stored, in milliseconds since 1970.
    pub created_ms: i64,
    /// The replicas, ordered by model, then device.
    pub replicas: Vec<StoredReplica>,
    /// The forecasts, ordered by model.
    pub models: Vec<StoredForecast>,
}

/// A replica of an adopted plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredReplica {
    /// The replica's identity. A replica of the plan before keeps its identity.
    pub id: ReplicaId,
    /// The model that the replica serves.
    pub model: ModelId,
    /// The device that the replica runs on.
    pub device: DeviceId,
    /// The kind of the device.
    pub device_kind: DeviceKind,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors that the replica may use; none sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// The duty cycle of a time-shared replica, in milliseconds.
    pub duty_cycle_ms: Option<f64>,
}

/// The forecast of an adopted plan for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredForecast {
    /// The model.
    pub model: ModelId,
    /// The request rate that was planned for.
    pub rate: RequestsPerSecond,
    /// The predicted requests per second within the SLO, by the policy's own estimate.
    pub goodput: RequestsPerSecond,
    /// The reason why the model is not, or not fully, served, as text for people.
    pub shortfall: Option<String>,
}

/// A stored plan without its replicas and forecasts.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPlanSummary {
    /// The plan's number.
    pub generation: Generation,
    /// The policy that made the plan.
    pub policy: String,
    /// The reason why the plan was made, as text for people.
    pub reason: String,
    /// The time that the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The time at which the plan was stored, in milliseconds since 1970.
    pub created_ms: i64,
    /// The plan's totals.
    pub totals: PlanTotals,
}

/// The totals of a plan, stored beside it as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanTotals {
    /// The sum of the models' predicted goodput, in requests per second.
    pub goodput_rps: f64,
    /// The number of replicas.
    pub replicas: usize,
    /// The number of models.
    pub models: usize,
    /// The number of devices with at least one replica.
    pub devices_used: usize,
    /// The number of models without a replica.
    pub unserved_models: usize,
    /// The first of these models.
    pub unserved: Vec<ModelId>,
}

impl PlanTotals {
    /// The largest number of models in [`PlanTotals::unserved`].
    const MAX_UNSERVED: usize = 16;

    fn of(plan: &StoredPlan) -> Self {
        let served: BTreeSet<&ModelId> = plan.replicas.iter().map(|r| &r.model).collect();
        let devices: BTreeSet<&DeviceId> = plan.replicas.iter().map(|r| &r.device).collect();
        let models = plan.models.iter().map(|forecast| &forecast.model);
        let unserved: Vec<&ModelId> = models.filter(|model| !served.contains(model)).collect();
        Self {
            goodput_rps: plan
                .models
                .iter()
                .map(|forecast| forecast.goodput.get())
                .sum(),
            replicas: plan.replicas.len(),
            models: plan.models.len(),
            devices_used: devices.len(),
            unserved_models: unserved.len(),
            unserved: unserved
                .into_iter()
                .take(Self::MAX_UNSERVED)
                .cloned()
                .collect(),
        }
    }
}

impl Store {
    /// The number of plans that are kept.
    pub const PLANS_KEPT: u64 = 1000;

    /// Adds a plan and removes those that are too old, in one transaction.
    ///
    /// # Errors
    /// If the database fails, or the generation exists.
    pub async fn insert_plan(&self, plan: &StoredPlan) -> Result<(), StoreError> {
        let generation = i64::try_from(plan.generation.0).unwrap_or(i64::MAX);
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "INSERT INTO plans (generation, policy, reason, solve_ms, created_ms, replicas, models, summary) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(generation)
        .bind(plan.policy.clone())
        .bind(plan.reason.clone())
        .bind(plan.solve_ms)
        .bind(plan.created_ms)
        .bind(to_json(&plan.replicas))
        .bind(to_json(&plan.models))
        .bind(to_json(&PlanTotals::of(plan)))
        .execute(&mut *transaction)
        .await?;
        sqlx::query("DELETE FROM plans WHERE generation <= $1")
            .bind(generation.saturating_sub(Self::PLANS_KEPT.cast_signed()))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the newest plan.
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

    /// Returns a plan, if it is kept.
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

    /// Returns the newest plans before a generation, or of all if none is given; the newest first, at most `limit`.
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

impl Store {
    /// Returns the summaries of the newest plans before a generation, or of all if none is given; the newest first, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn plan_summaries(
        &self,
        before: Option<Generation>,
        limit: u32,
    ) -> Result<Vec<StoredPlanSummary>, StoreError> {
        let before = before
            .and_then(|generation| i64::try_from(generation.0).ok())
            .unwrap_or(i64::MAX);
        let rows = sqlx::query(
            "SELECT generation, policy, reason, solve_ms, created_ms, summary FROM plans \
             WHERE generation < $1 AND summary IS NOT NULL ORDER BY generation DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        let read = |row: &AnyRow| {
            Ok(StoredPlanSummary {
                generation: Generation(unsigned(row, "plans", "generation")?),
                policy: row.try_get("policy")?,
                reason: row.try_get("reason")?,
                solve_ms: row.try_get("solve_ms")?,
                created_ms: row.try_get("created_ms")?,
                totals: json(row, "plans", "summary")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Adds the summaries that an earlier version did not write, one plan at a time.
    pub(super) async fn summarize_plans(&self) -> Result<(), StoreError> {
        let rows = sqlx::query("SELECT generation FROM plans WHERE summary IS NULL")
            .fetch_all(&self.pool)
            .await?;
        for row in rows {
            let generation = Generation(unsigned(&row, "plans", "generation")?);
            let Some(plan) = self.plan(generation).await? else {
                continue;
            };
            sqlx::query("UPDATE plans SET summary = $1 WHERE generation = $2")
                .bind(to_json(&PlanTotals::of(&plan)))
                .bind(row.try_get::<i64, _>("generation")?)
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }
}

impl StoredPlan {
    /// Returns the current time for [`StoredPlan::created_ms`].
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
