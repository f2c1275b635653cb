//! A database of PostgreSQL.

use std::time::Duration;

use sqlx::{
    AnyConnection, Connection as _, Executor as _,
    any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers},
};

use super::{
    database::{Database, Patience},
    errors::OpenStoreError,
    hold::{CONNECT_LIMIT, Hold},
    migrations,
    store_url::PostgresUrl,
};

/// The time for which the server may not answer a statement.
const PATIENCE: Patience = Patience(Some(Duration::from_secs(10)));

/// The settings of every session. A statement that waits for longer is as good as a database that is away, a transaction whose client is cut off
/// does not keep the next one waiting, and what is acknowledged is on the disk, whatever the server does for others.
const SETTINGS: &str = "SET statement_timeout = 8000; SET lock_timeout = 5000; SET idle_in_transaction_session_timeout = 8000; \
     SET default_transaction_isolation = 'read committed'; \
     SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
     SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// Takes hold of a database for a program, and migrates its tables.
pub(super) async fn open(
    url: &PostgresUrl,
    program: &str,
) -> Result<(Database, Hold), OpenStoreError> {
    let hold = Hold::take(url, program).await?;
    let failed = |source| OpenStoreError::Server {
        url: url.clone(),
        source,
    };
    install_default_drivers();
    // On a session without time limits: a table may be large.
    let mut session = AnyConnection::connect(url.secret()).await.map_err(failed)?;
    migrations::of_postgres()
        .run(&mut session)
        .await
        .map_err(OpenStoreError::Migrate)?;
    session.close().await.map_err(failed)?;
    let database = connect(url).await.map_err(failed)?;
    hold.register(&database).await.map_err(failed)?;
    Ok((database, hold))
}

/// Makes a pool of connections.
pub(super) async fn connect(url: &PostgresUrl) -> Result<Database, sqlx::Error> {
    install_default_drivers();
    let options: AnyConnectOptions = url.secret().parse()?;
    let pool = AnyPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(CONNECT_LIMIT)
        .after_connect(|session, _| {
            Box::pin(async move {
                session.execute(SETTINGS).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await?;
    Ok(Database {
        pool,
        patience: PATIENCE,
    })
}
