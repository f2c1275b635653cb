//! The identity of the store, and the epochs of the gateways that used it.

use packhorse_cluster::ClusterId;

use super::{Store, StoreError, parsed, unix_ms, unsigned};

impl Store {
    /// Returns the random identity of this store, which is made on the first call. A backup has the identity of its original.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn cluster_id(&self) -> Result<ClusterId, StoreError> {
        let read = || async {
            let row = sqlx::query("SELECT id FROM cluster WHERE singleton = 1")
                .fetch_optional(&self.database)
                .await?;
            row.map(|row| parsed(&row, "cluster", "id")).transpose()
        };
        if let Some(id) = read().await? {
            return Ok(id);
        }
        let statement = sqlx::query(
            "INSERT INTO cluster (singleton, id, created_ms) VALUES (1, $1, $2) ON CONFLICT (singleton) DO NOTHING",
        )
        .bind(hex::encode(rand::random::<[u8; 16]>()))
        .bind(unix_ms());
        self.write(statement).await?;
        let id = read().await?;
        Ok(id.expect("the row was made, and is never deleted"))
    }

    /// Begins the next epoch and returns its number, which is above that of every earlier start and durable.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn begin_epoch(&self) -> Result<u64, StoreError> {
        // A statement that returns rows has returned the first one before it is durable.
        let mut transaction = self.begin().await?;
        let row = sqlx::query(
            "INSERT INTO epochs (epoch, started_ms) SELECT COALESCE(MAX(epoch), 0) + 1, $1 FROM epochs RETURNING epoch",
        )
        .bind(unix_ms())
        .fetch_one(&mut transaction)
        .await?;
        let epoch = unsigned(&row, "epochs", "epoch")?;
        transaction.commit().await?;
        Ok(epoch)
    }

    /// Begins the epoch with this number, durably. Agents have seen those below it from a gateway whose store had more in it.
    ///
    /// # Errors
    /// If the database fails, or has this epoch already.
    pub async fn begin_epoch_at(&self, epoch: u64) -> Result<(), StoreError> {
        let statement = sqlx::query("INSERT INTO epochs (epoch, started_ms) VALUES ($1, $2)")
            .bind(i64::try_from(epoch).unwrap_or(i64::MAX))
            .bind(unix_ms());
        self.write(statement).await?;
        Ok(())
    }
}
