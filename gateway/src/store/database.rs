//! The connections to the database, of either engine.

use std::{io, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Any, AnyPool, Either, Error, Execute, Executor, SqlStr,
    any::{AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo},
};
use tokio::time::timeout;

/// The results of a statement: rows, and how many it has changed.
pub(super) type Steps<'e> = BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, Error>>;

/// A pool of connections, on which statements run alone.
#[derive(Clone, Debug)]
pub(super) struct Database {
    pub(super) pool: AnyPool,
    pub(super) patience: Patience,
}

impl Database {
    /// Closes all connections.
    pub(super) async fn close(&self) {
        let closed = self.pool.close().map(Ok);
        // Those that do not answer end with the process.
        let _ = self.patience.wait(closed).await;
    }
}

/// The time for which the database may say nothing before a statement is given up: `None` for a file, which always answers. A server may be
/// cut off without a sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience(pub(super) Option<Duration>);

impl Patience {
    /// Ends what a statement returns with an error once the database says nothing for too long.
    pub(super) fn limit(self, steps: Steps<'_>) -> Steps<'_> {
        let Some(limit) = self.0 else { return steps };
        stream::unfold(Some(steps), move |steps| async move {
            let mut steps = steps?;
            match timeout(limit, steps.next()).await {
                Ok(None) => None,
                Ok(Some(step)) => Some((step, Some(steps))),
                Err(_) => Some((Err(silence(limit)), None)),
            }
        })
        .boxed()
    }

    /// Waits for a result of the database, or for too long.
    pub(super) async fn wait<T>(
        self,
        result: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.0 {
            None => result.await,
            Some(limit) => timeout(limit, result)
                .await
                .unwrap_or_else(|_| Err(silence(limit))),
        }
    }
}

fn silence(limit: Duration) -> Error {
    let text = format!("the database has not answered within {limit:?}");
    Error::Io(io::Error::new(io::ErrorKind::TimedOut, text))
}

impl<'p> Executor<'p> for &'p Database {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> Steps<'e>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        self.patience.limit(self.pool.fetch_many(query))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        self.patience.wait(self.pool.fetch_optional(query)).boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        'p: 'e,
    {
        self.patience
            .wait(self.pool.prepare_with(sql, parameters))
            .boxed()
    }
}
