//! Transactions on connections of which nothing is assumed.

use std::ops::{Deref, DerefMut};

use sqlx::{Executor as _, Sqlite, SqliteConnection, SqlitePool, pool::PoolConnection};

/// A transaction, on a connection of the pool that it has to itself.
///
/// SQLite rolls a transaction back on its own when the disk is full, a file cannot be read or written, memory runs out, or a
/// statement is interrupted, and then every further statement of the connection is a transaction of its own. The transactions of
/// sqlx do not notice: they count how deep they are, and what follows on that connection would be savepoints within a transaction
/// that nobody commits. So this one counts nothing, `COMMIT` fails where SQLite has no transaction any more, and a
/// connection returns to the pool only after a `COMMIT` that succeeded. Every other one is closed, which rolls back what is left.
pub(super) struct Transaction {
    connection: PoolConnection<Sqlite>,
    is_committed: bool,
}

impl Transaction {
    /// Begins a transaction on a free connection.
    pub(super) async fn begin(pool: &SqlitePool) -> Result<Self, sqlx::Error> {
        let mut transaction = Self {
            connection: pool.acquire().await?,
            is_committed: false,
        };
        transaction.execute("BEGIN").await?;
        Ok(transaction)
    }

    /// Commits. The writes are durable once this returns.
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.execute("COMMIT").await?;
        self.is_committed = true;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_committed {
            self.connection.close_on_drop();
        }
    }
}
