//! Transactions on connections of which nothing is assumed.

use futures_util::{FutureExt as _, future::BoxFuture};
use sqlx::{
    Any, AnyConnection, Error, Execute, Executor, SqlStr,
    any::{AnyRow, AnyStatement, AnyTypeInfo},
    pool::PoolConnection,
};

use super::database::{Database, Patience, Steps};

/// A transaction, on a connection of the pool that it has to itself.
///
/// SQLite rolls a transaction back on its own when the disk is full, a file cannot be read or written, memory runs out, or a
/// statement is interrupted, and then every further statement of the connection is a transaction of its own. The transactions of
/// sqlx do not notice: they count how deep they are, and what follows on that connection would be savepoints within a transaction
/// that nobody commits. So this one counts nothing, `COMMIT` fails where SQLite has no transaction any more, and a
/// connection returns to the pool only after a `COMMIT` that succeeded. Every other one is closed, which rolls back what is left.
#[derive(Debug)]
pub(super) struct Transaction {
    connection: PoolConnection<Any>,
    patience: Patience,
    is_committed: bool,
}

impl Transaction {
    /// Begins a transaction on a free connection.
    pub(super) async fn begin(database: &Database) -> Result<Self, Error> {
        let mut transaction = Self {
            connection: database.pool.acquire().await?,
            patience: database.patience,
            is_committed: false,
        };
        transaction.execute("BEGIN").await?;
        Ok(transaction)
    }

    /// Commits. The writes are durable once this returns.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        self.execute("COMMIT").await?;
        self.is_committed = true;
        Ok(())
    }

    fn connection(&mut self) -> &mut AnyConnection {
        &mut self.connection
    }
}

impl<'t> Executor<'t> for &'t mut Transaction {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> Steps<'e>
    where
        't: 'e,
        E: 'q + Execute<'q, Any>,
    {
        self.patience.limit(self.connection().fetch_many(query))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        't: 'e,
        E: 'q + Execute<'q, Any>,
    {
        self.patience
            .wait(self.connection().fetch_optional(query))
            .boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        't: 'e,
    {
        self.patience
            .wait(self.connection().prepare_with(sql, parameters))
            .boxed()
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_committed {
            self.connection.close_on_drop();
        }
    }
}
