//! Registered models.

use std::{sync::Arc, time::Duration};

use packhorse_cluster::{
    Generation, MinReplicas, ModelId, ModelSpec, Percent, Priority, Processing, Program,
    RequestsPerSecond, VariantOf,
};
use packhorse_control::record::ModelRecord;
use packhorse_estimator::OperatorGraph;
use sqlx::{Row as _, any::AnyRow, error::ErrorKind};

use super::{
    Store, StoreError, json, parsed, reals::BindReal as _, to_json, transaction::Transaction,
    unix_ms, unsigned,
};

/// The reason why a model cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum InsertModelError {
    /// The version is already registered.
    #[error("the version exists")]
    Exists,
    /// The model's file is not stored.
    #[error("the artifact does not exist")]
    UnknownArtifact,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Adds a model. The registration is durable once this returns.
    ///
    /// # Errors
    /// If the version exists, the artifact does not exist, or the database fails.
    pub async fn insert_model(&self, spec: &ModelSpec) -> Result<(), InsertModelError> {
        let mut transaction = self.begin().await?;
        insert(&mut transaction, spec).await?;
        Ok(transaction.commit().await.map_err(StoreError::from)?)
    }

    /// Adds a model in the place of that of the same name and version, which goes with its profiles: both or neither.
    ///
    /// # Errors
    /// If the artifact does not exist, or the database fails.
    pub async fn replace_model(&self, spec: &ModelSpec) -> Result<(), InsertModelError> {
        let mut transaction = self.begin().await?;
        delete(&mut transaction, &spec.program.model).await?;
        insert(&mut transaction, spec).await?;
        Ok(transaction.commit().await.map_err(StoreError::from)?)
    }

    /// Returns all models, ordered by name, then version.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn models(&self) -> Result<Vec<ModelRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.name, m.version, m.artifact, m.max_batch_size, m.inputs, m.outputs, m.slo_ms, m.rate_rps, m.rate_mode, \
             m.priority, m.min_replicas, m.queue_limit, m.max_cold_wait_ms, CASE WHEN m.cache THEN 1 ELSE 0 END AS cache, m.family, m.accuracy_pct, m.processing, m.failure, m.operators, m.after_plan, COALESCE(a.bytes, 0) AS artifact_bytes \
             FROM models m LEFT JOIN artifacts a ON a.digest = m.artifact ORDER BY m.name, m.version",
        )
        .fetch_all(&self.database)
        .await?;
        rows.iter().map(read).collect()
    }

    /// Replaces the SLO, rate, rate mode, priority, least number of replicas, queue limit, wait for a load, cache, family and accuracy of models, all or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn update_models(&self, specs: &[ModelSpec]) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        for spec in specs {
            update(&mut transaction, spec).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Stores the reason why a model cannot be served as it is registered.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn fail_model(&self, model: &ModelId, failure: &str) -> Result<(), StoreError> {
        let statement =
            sqlx::query("UPDATE models SET failure = $1 WHERE name = $2 AND version = $3")
                .bind(failure)
                .bind(model.name.to_string())
                .bind(i64::from(model.version.get()));
        self.write(statement).await?;
        Ok(())
    }

    /// Stores the operators of a model's program.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_operators(
        &self,
        model: &ModelId,
        operators: &OperatorGraph,
    ) -> Result<(), StoreError> {
        let statement =
            sqlx::query("UPDATE models SET operators = $1 WHERE name = $2 AND version = $3")
                .bind(operators.to_json())
                .bind(model.name.to_string())
                .bind(i64::from(model.version.get()));
        self.write(statement).await?;
        Ok(())
    }

    /// Removes models and their profiles, and replaces what may change of another version that takes what belongs to the name, all or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_models(
        &self,
        models: &[ModelId],
        heir: Option<&ModelSpec>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        for model in models {
            delete(&mut transaction, model).await?;
        }
        if let Some(heir) = heir {
            update(&mut transaction, heir).await?;
        }
        sqlx::query("DELETE FROM splits WHERE name NOT IN (SELECT name FROM models)")
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Adds a model within a transaction.
async fn insert(transaction: &mut Transaction, spec: &ModelSpec) -> Result<(), InsertModelError> {
    let program = &spec.program;
    let done = sqlx::query(
        "INSERT INTO models (name, version, artifact, max_batch_size, inputs, outputs, slo_ms, rate_rps, rate_mode, \
         queue_limit, family, accuracy_pct, priority, min_replicas, max_cold_wait_ms, cache, processing, tokenizer, failure, after_plan, created_ms) \
         SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, NULL, COALESCE(MAX(generation), 0), $19 FROM plans",
    )
    .bind(program.model.name.to_string())
    .bind(i64::from(program.model.version.get()))
    .bind(program.artifact.to_string())
    .bind(i64::from(program.max_batch_size))
    .bind(to_json(&program.inputs))
    .bind(to_json(&program.outputs))
    .bind(millis(spec.slo))
    .bind_real(spec.rate.map(RequestsPerSecond::get))
    .bind(spec.rate_mode.as_str())
    .bind(spec.queue_limit.map(i64::from))
    .bind(spec.family().map(ToString::to_string))
    .bind_real(accuracy(spec))
    .bind(i64::from(u32::from(spec.priority)))
    .bind(i64::from(u32::from(spec.min_replicas)))
    .bind(spec.max_cold_wait.map(whole_millis))
    .bind(spec.cache)
    .bind(processing(spec))
    .bind(spec.processing.tokenizer().map(|digest| digest.to_string()))
    .bind(unix_ms())
    .execute(&mut *transaction)
    .await;
    match done {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(e)) if e.kind() == ErrorKind::UniqueViolation => {
            Err(InsertModelError::Exists)
        }
        Err(sqlx::Error::Database(e)) if e.kind() == ErrorKind::ForeignKeyViolation => {
            Err(InsertModelError::UnknownArtifact)
        }
        Err(e) => Err(InsertModelError::Store(e.into())),
    }
}

/// Returns what is declared of inputs and outputs; `None` if nothing is.
fn processing(spec: &ModelSpec) -> Option<String> {
    (!spec.processing.is_empty()).then(|| to_json(&*spec.processing))
}

fn whole_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Replaces what may change of a model within a transaction.
async fn update(transaction: &mut Transaction, spec: &ModelSpec) -> Result<(), StoreError> {
    let model = &spec.program.model;
    sqlx::query(
        "UPDATE models SET slo_ms = $1, rate_rps = $2, rate_mode = $3, queue_limit = $4, family = $5, accuracy_pct = $6, priority = $7, \
         min_replicas = $8, max_cold_wait_ms = $9, cache = $10 WHERE name = $11 AND version = $12",
    )
    .bind(millis(spec.slo))
    .bind_real(spec.rate.map(RequestsPerSecond::get))
    .bind(spec.rate_mode.as_str())
    .bind(spec.queue_limit.map(i64::from))
    .bind(spec.family().map(ToString::to_string))
    .bind_real(accuracy(spec))
    .bind(i64::from(u32::from(spec.priority)))
    .bind(i64::from(u32::from(spec.min_replicas)))
    .bind(spec.max_cold_wait.map(whole_millis))
    .bind(spec.cache)
    .bind(model.name.to_string())
    .bind(i64::from(model.version.get()))
    .execute(&mut *transaction)
    .await?;
    Ok(())
}

/// Removes a model and its profiles within a transaction.
async fn delete(transaction: &mut Transaction, model: &ModelId) -> Result<(), StoreError> {
    const STATEMENTS: [&str; 2] = [
        "DELETE FROM models WHERE name = $1 AND version = $2",
        "DELETE FROM profiles WHERE name = $1 AND version = $2",
    ];
    sqlx::query(
        "UPDATE artifacts SET last_used_ms = $1 WHERE digest IN \
         (SELECT artifact FROM models WHERE name = $2 AND version = $3 \
         UNION SELECT tokenizer FROM models WHERE name = $2 AND version = $3)",
    )
    .bind(unix_ms())
    .bind(model.name.to_string())
    .bind(i64::from(model.version.get()))
    .execute(&mut *transaction)
    .await?;
    for statement in STATEMENTS {
        sqlx::query(statement)
            .bind(model.name.to_string())
            .bind(i64::from(model.version.get()))
            .execute(&mut *transaction)
            .await?;
    }
    Ok(())
}

fn accuracy(spec: &ModelSpec) -> Option<f64> {
    Some(spec.variant.as_ref()?.accuracy.get())
}

/// Reads the family and accuracy of a model.
fn read_variant(row: &AnyRow) -> Result<Option<VariantOf>, StoreError> {
    const TABLE: &str = "models";
    let family = row.try_get::<Option<String>, _>("family")?;
    let accuracy = row.try_get::<Option<f64>, _>("accuracy_pct")?;
    let (Some(family), Some(accuracy)) = (family, accuracy) else {
        return Ok(None);
    };
    let family = family.parse();
    Ok(Some(VariantOf {
        family: family.map_err(|e: packhorse_cluster::IdError| {
            StoreError::unreadable(TABLE, "family")(e.into())
        })?,
        accuracy: Percent::new(accuracy)
            .map_err(|e| StoreError::unreadable(TABLE, "accuracy_pct")(e.into()))?,
    }))
}

fn read_processing(row: &AnyRow) -> Result<Arc<Processing>, StoreError> {
    let text = row.try_get::<Option<String>, _>("processing")?;
    let read = text.map_or_else(|| Ok(Arc::default()), |text| serde_json::from_str(&text));
    read.map_err(|e| StoreError::unreadable("models", "processing")(e.into()))
}

fn millis(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn read(row: &AnyRow) -> Result<ModelRecord, StoreError> {
    const TABLE: &str = "models";
    let version: u32 = unsigned(row, TABLE, "version")?;
    let slo = Duration::try_from_secs_f64(row.try_get::<f64, _>("slo_ms")? / 1e3)
        .map_err(|e| StoreError::unreadable(TABLE, "slo_ms")(e.into()))?;
    let rate = row.try_get::<Option<f64>, _>("rate_rps")?;
    let rate = rate
        .map(RequestsPerSecond::new)
        .transpose()
        .map_err(|e| StoreError::unreadable(TABLE, "rate_rps")(e.into()))?;
    let queue_limit = row.try_get::<Option<i64>, _>("queue_limit")?;
    let queue_limit = queue_limit
        .map(u32::try_from)
        .transpose()
        .map_err(|e| StoreError::unreadable(TABLE, "queue_limit")(e.into()))?;
    let max_cold_wait = row.try_get::<Option<i64>, _>("max_cold_wait_ms")?;
    let max_cold_wait = max_cold_wait
        .map(u64::try_from)
        .transpose()
        .map_err(|e| StoreError::unreadable(TABLE, "max_cold_wait_ms")(e.into()))?;
    Ok(ModelRecord {
        spec: ModelSpec {
            program: Program {
                model: ModelId {
                    name: parsed(row, TABLE, "name")?,
                    version: version
                        .try_into()
                        .map_err(|e: packhorse_cluster::IdError| {
                            StoreError::unreadable(TABLE, "version")(e.into())
                        })?,
                },
                artifact: parsed(row, TABLE, "artifact")?,
                max_batch_size: unsigned(row, TABLE, "max_batch_size")?,
                inputs: json(row, TABLE, "inputs")?,
                outputs: json(row, TABLE, "outputs")?,
            },
            slo,
            rate,
            rate_mode: parsed(row, TABLE, "rate_mode")?,
            priority: Priority::new(unsigned(row, TABLE, "priority")?)
                .map_err(|e| StoreError::unreadable(TABLE, "priority")(e.into()))?,
            min_replicas: MinReplicas::new(unsigned(row, TABLE, "min_replicas")?)
                .map_err(|e| StoreError::unreadable(TABLE, "min_replicas")(e.into()))?,
            queue_limit,
            max_cold_wait: max_cold_wait.map(Duration::from_millis),
            cache: row.try_get::<i64, _>("cache")? != 0,
            variant: read_variant(row)?,
            processing: read_processing(row)?,
        },
        artifact_bytes: unsigned(row, "artifacts", "artifact_bytes")?,
        failure: row.try_get("failure")?,
        operators: operators(row)?,
        after_plan: Generation(unsigned(row, TABLE, "after_plan")?),
    })
}

/// Returns the operators of a model's program; `None` if they cannot be read. Without them the model is measured all the same.
fn operators(row: &AnyRow) -> Result<Option<Arc<OperatorGraph>>, StoreError> {
    let text = row.try_get::<Option<String>, _>("operators")?;
    let graph = text.map(|text| OperatorGraph::from_json(&text)).transpose();
    let graph = graph.unwrap_or_else(|e| {
        tracing::warn!(error = %e, "the stored operators of a model cannot be read");
        None
    });
    Ok(graph.map(Arc::new))
}
