//! Adopted plans.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    BackboneId, ByteCount, ComputeShare, DeviceId, DeviceKind, Generation, ModelId, PoolPlace,
    Replica, ReplicaId, ReplicaPhase, ReplicaSpec, RequestsPerSecond,
};
use packhorse_control::record::{Forecast, PlanOutcome, PlanRecord};
use serde::{Deserialize, Serialize};
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, to_json, unsigned};

/// A replica of an adopted plan, as it is stored.
#[derive(Serialize, Deserialize)]
struct ReplicaRow {
    id: ReplicaId,
    model: ModelId,
    device: DeviceId,
    device_kind: DeviceKind,
    batch_size: u32,
    compute_share: Option<ComputeShare>,
    duty_cycle_ms: Option<f64>,
    /// Of replicas that share a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backbone: Option<BackboneId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<ReplicaId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<ByteCount>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<PoolPlace>,
}

/// The forecast of an adopted plan for a model, as it is stored.
#[derive(Serialize, Deserialize)]
struct ForecastRow {
    model: ModelId,
    rate: RequestsPerSecond,
    goodput: RequestsPerSecond,
    shortfall: Option<String>,
}

/// The outcome of a plan, as it is stored.
#[derive(Serialize, Deserialize)]
struct OutcomeRow {
    seconds: f64,
    arrived: f64,
    predicted: f64,
    observed: f64,
}

impl From<PlanOutcome> for OutcomeRow {
    fn from(outcome: PlanOutcome) -> Self {
        let PlanOutcome {
            seconds,
            arrived,
            predicted,
            observed,
        } = outcome;
        Self {
            seconds,
            arrived,
            predicted,
            observed,
        }
    }
}

/// A stored plan without its replicas and forecasts.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSummaryRecord {
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
    /// The requests in the time in which the plan was current; none before another plan has replaced it.
    pub outcome: Option<PlanOutcome>,
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

    fn of(plan: &PlanRecord) -> Self {
        let served: BTreeSet<&ModelId> = plan.replicas.iter().map(|r| &r.spec.model).collect();
        let devices: BTreeSet<&DeviceId> = plan.replicas.iter().map(|r| &r.spec.device).collect();
        let models = plan.forecasts.iter().map(|forecast| &forecast.model);
        let unserved: Vec<&ModelId> = models.filter(|model| !served.contains(model)).collect();
        Self {
            goodput_rps: plan
                .forecasts
                .iter()
                .map(|forecast| forecast.goodput.get())
                .sum(),
            replicas: plan.replicas.len(),
            models: plan.forecasts.len(),
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

    /// Adds a plan, notes the outcome of the plan before it, and removes those that are too old, in one transaction.
    ///
    /// # Errors
    /// If the database fails, or the generation exists.
    pub async fn insert_plan(
        &self,
        plan: &PlanRecord,
        outcome: Option<&PlanOutcome>,
    ) -> Result<(), StoreError> {
        let generation = i64::try_from(plan.generation.0).unwrap_or(i64::MAX);
        let mut transaction = self.begin_own().await?;
        sqlx::query(
            "INSERT INTO plans (generation, policy, reason, solve_ms, created_ms, replicas, models, summary) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(generation)
        .bind(plan.policy.clone())
        .bind(plan.reason.clone())
        .bind(plan.solve_ms)
        .bind(plan.created_ms)
        .bind(to_json(&replica_rows(plan)))
        .bind(to_json(&forecast_rows(plan)))
        .bind(to_json(&PlanTotals::of(plan)))
        .execute(&mut transaction)
        .await?;
        if let Some(outcome) = outcome {
            sqlx::query("UPDATE plans SET outcome = $1 WHERE generation = $2")
                .bind(to_json(&OutcomeRow::from(*outcome)))
                .bind(generation.saturating_sub(1))
                .execute(&mut transaction)
                .await?;
        }
        sqlx::query("DELETE FROM plans WHERE generation <= $1")
            .bind(generation.saturating_sub(Self::PLANS_KEPT.cast_signed()))
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the newest plan.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn newest_plan(&self) -> Result<Option<PlanRecord>, StoreError> {
        sqlx::query("SELECT * FROM plans ORDER BY generation DESC LIMIT 1")
            .fetch_optional(&self.database)
            .await?
            .as_ref()
            .map(read)
            .transpose()
    }

    /// Returns a plan, if it is kept.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn plan(&self, generation: Generation) -> Result<Option<PlanRecord>, StoreError> {
        let Ok(generation) = i64::try_from(generation.0) else {
            return Ok(None);
        };
        sqlx::query("SELECT * FROM plans WHERE generation = $1")
            .bind(generation)
            .fetch_optional(&self.database)
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
    ) -> Result<Vec<PlanRecord>, StoreError> {
        let before = before
            .and_then(|generation| i64::try_from(generation.0).ok())
            .unwrap_or(i64::MAX);
        let rows = sqlx::query(
            "SELECT * FROM plans WHERE generation < $1 ORDER BY generation DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.database)
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
    ) -> Result<Vec<PlanSummaryRecord>, StoreError> {
        let before = before
            .and_then(|generation| i64::try_from(generation.0).ok())
            .unwrap_or(i64::MAX);
        let rows = sqlx::query(
            "SELECT generation, policy, reason, solve_ms, created_ms, summary, outcome FROM plans \
             WHERE generation < $1 AND summary IS NOT NULL ORDER BY generation DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.database)
        .await?;
        let read = |row: &AnyRow| {
            Ok(PlanSummaryRecord {
                generation: Generation(unsigned(row, "plans", "generation")?),
                policy: row.try_get("policy")?,
                reason: row.try_get("reason")?,
                solve_ms: row.try_get("solve_ms")?,
                created_ms: row.try_get("created_ms")?,
                totals: json(row, "plans", "summary")?,
                outcome: outcome(row)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Adds the summaries that an earlier version did not write, one plan at a time.
    pub(super) async fn summarize_plans(&self) -> Result<(), StoreError> {
        let rows = sqlx::query("SELECT generation FROM plans WHERE summary IS NULL")
            .fetch_all(&self.database)
            .await?;
        for row in rows {
            let generation = Generation(unsigned(&row, "plans", "generation")?);
            let Some(plan) = self.plan(generation).await? else {
                continue;
            };
            let statement = sqlx::query("UPDATE plans SET summary = $1 WHERE generation = $2")
                .bind(to_json(&PlanTotals::of(&plan)))
                .bind(row.try_get::<i64, _>("generation")?);
            self.write(statement).await?;
        }
        Ok(())
    }
}

/// Reads the outcome of a plan, if it has one.
fn outcome(row: &AnyRow) -> Result<Option<PlanOutcome>, StoreError> {
    if row.try_get::<Option<String>, _>("outcome")?.is_none() {
        return Ok(None);
    }
    let row: OutcomeRow = json(row, "plans", "outcome")?;
    Ok(Some(PlanOutcome {
        seconds: row.seconds,
        arrived: row.arrived,
        predicted: row.predicted,
        observed: row.observed,
    }))
}

fn replica_rows(plan: &PlanRecord) -> Vec<ReplicaRow> {
    let row = |replica: &Replica| {
        let spec = &replica.spec;
        Some(ReplicaRow {
            id: replica.id,
            model: spec.model.clone(),
            device: spec.device.clone(),
            device_kind: plan.device_kinds.get(&spec.device)?.clone(),
            batch_size: spec.batch_size,
            compute_share: spec.compute_share,
            duty_cycle_ms: spec.duty_cycle.map(|cycle| cycle.as_secs_f64() * 1e3),
            backbone: spec.backbone,
            worker: replica.worker,
            memory_bytes: spec.memory.filter(|_| spec.backbone.is_some()),
            pool: spec.pool,
        })
    };
    plan.replicas.iter().filter_map(row).collect()
}

fn forecast_rows(plan: &PlanRecord) -> Vec<ForecastRow> {
    let row = |forecast: &Forecast| ForecastRow {
        model: forecast.model.clone(),
        rate: forecast.rate,
        goodput: forecast.goodput,
        shortfall: forecast.shortfall.clone(),
    };
    plan.forecasts.iter().map(row).collect()
}

fn read(row: &AnyRow) -> Result<PlanRecord, StoreError> {
    let replicas: Vec<ReplicaRow> = json(row, "plans", "replicas")?;
    let forecasts: Vec<ForecastRow> = json(row, "plans", "models")?;
    let kinds = replicas.iter();
    let kinds = kinds.map(|replica| (replica.device.clone(), replica.device_kind.clone()));
    let device_kinds: BTreeMap<DeviceId, DeviceKind> = kinds.collect();
    let cycle = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).ok();
    let replicas = replicas.into_iter().map(|replica| Replica {
        id: replica.id,
        spec: ReplicaSpec {
            compute_share: replica.compute_share,
            duty_cycle: replica.duty_cycle_ms.and_then(cycle),
            memory: replica.memory_bytes,
            backbone: replica.backbone,
            pool: replica.pool,
            ..ReplicaSpec::new(replica.model, replica.device, replica.batch_size)
        },
        phase: ReplicaPhase::Planned,
        worker: replica.worker,
    });
    let forecasts = forecasts.into_iter().map(|forecast| Forecast {
        model: forecast.model,
        rate: forecast.rate,
        goodput: forecast.goodput,
        shortfall: forecast.shortfall,
    });
    Ok(PlanRecord {
        generation: Generation(unsigned(row, "plans", "generation")?),
        policy: row.try_get("policy")?,
        reason: row.try_get("reason")?,
        solve_ms: row.try_get("solve_ms")?,
        created_ms: row.try_get("created_ms")?,
        replicas: replicas.collect(),
        device_kinds,
        forecasts: forecasts.collect(),
    })
}
