//! The hold of a gateway on its database of PostgreSQL, which one gateway has at a time.
//!
//! It has two parts. An advisory lock of a session that is open as long as the gateway has a second gateway refused at its start, and is
//! free as soon as the first one's connection ends. A row of the table `holder` names the gateway that came last; every transaction that
//! writes locks it first and finds out whether it is still its own. A gateway that was cut off while another one began can so change nothing,
//! whatever it believes of its lock. As each has the row alone, the transactions that write come one after the other, as those of SQLite do.

use std::{fs, io, sync::Arc, time::Duration};

use sqlx::{
    Connection as _, Executor as _, PgConnection, Row as _, postgres::PgConnectOptions,
    postgres::PgRow,
};
use tokio::{
    sync::{Mutex, watch},
    time::{sleep, timeout},
};

use super::{
    clock::unix_ms,
    database::{Database, Patience},
    errors::{OpenStoreError, StoreError},
    store_url::PostgresUrl,
    transaction::Transaction,
};

/// The first half of the lock's number; the second one is of the schema.
const LOCK: i32 = 0x7061_636b;
/// The time for which a start waits for the session of a gateway that has just ended.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// The same for a lock that is taken again.
const AGAIN_PATIENCE: Duration = Duration::from_secs(1);
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// The time within which a connection is made.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// The time between two looks at a lock that nobody writes under.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which the server may not answer such a look.
const PING_LIMIT: Duration = Duration::from_secs(5);

/// A gateway's hold on its database. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Hold(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    url: PostgresUrl,
    /// The random identity of this process's hold.
    id: String,
    /// The words about this process for others.
    name: String,
    /// The session that has the lock; `None` once it was lost.
    session: Mutex<Option<PgConnection>>,
    /// The holder that came after this one.
    successor: watch::Sender<Option<String>>,
}

impl Hold {
    /// Takes the lock of a database for a program.
    pub(super) async fn take(url: &PostgresUrl, program: &str) -> Result<Self, OpenStoreError> {
        let failed = |source| OpenStoreError::Server {
            url: url.clone(),
            source,
        };
        let name = format!("{program} on {} ({})", host(), std::process::id());
        let mut session = connect(url, &name).await.map_err(failed)?;
        if !lock(&mut session, START_PATIENCE).await.map_err(failed)? {
            let by = holder(&mut session).await.map_err(failed)?;
            return Err(OpenStoreError::Held {
                url: url.clone(),
                by,
            });
        }
        Ok(Self(Arc::new(Shared {
            url: url.clone(),
            id: hex::encode(rand::random::<[u8; 16]>()),
            name,
            session: Mutex::new(Some(session)),
            successor: watch::Sender::new(None),
        })))
    }

    /// Writes who holds the database. From then on, no earlier holder changes anything.
    pub(super) async fn register(&self, database: &Database) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO holder (singleton, id, name, since_ms) VALUES (1, $1, $2, $3) \
             ON CONFLICT (singleton) DO UPDATE SET id = excluded.id, name = excluded.name, since_ms = excluded.since_ms",
        )
        .bind(self.0.id.clone())
        .bind(self.0.name.clone())
        .bind(unix_ms())
        .execute(database)
        .await?;
        Ok(())
    }

    /// Begins a transaction of this gateway.
    pub(super) async fn begin(&self, database: &Database) -> Result<Transaction, StoreError> {
        self.confirm().await?;
        let mut transaction = Transaction::begin(database).await?;
        self.claim(&mut transaction).await?;
        Ok(transaction)
    }

    /// Checks that the lock is this gateway's, and takes it again if its session was lost.
    async fn confirm(&self) -> Result<(), StoreError> {
        let successor = self.0.successor.borrow().clone();
        if let Some(by) = successor {
            return Err(StoreError::Superseded(by));
        }
        let mut held = self.0.session.lock().await;
        let had = held.is_some();
        if let Some(mut session) = held.take() {
            let limit = Patience(Some(PING_LIMIT));
            if limit.wait(session.ping()).await.is_ok() {
                *held = Some(session);
                return Ok(());
            }
        }
        if had {
            tracing::warn!("the connection that holds the lock of the database is lost");
        }
        *held = Some(self.take_again().await?);
        tracing::info!("the lock of the database is taken again");
        Ok(())
    }

    async fn take_again(&self) -> Result<PgConnection, StoreError> {
        let mut session = connect(&self.0.url, &self.0.name).await?;
        let is_locked = lock(&mut session, AGAIN_PATIENCE).await?;
        let row = sqlx::query("SELECT id, name FROM holder WHERE singleton = 1")
            .fetch_optional(&mut session)
            .await?;
        let text = |row: &PgRow, column| row.try_get::<String, _>(column);
        let last = row
            .map(|row| Ok::<_, sqlx::Error>((text(&row, "id")?, text(&row, "name")?)))
            .transpose()?;
        self.compare(last)?;
        if is_locked {
            Ok(session)
        } else {
            Err(unavailable("another session has the lock of the database"))
        }
    }

    /// Locks the row of the holder for this transaction, and checks that it is this gateway's.
    async fn claim(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        let row = sqlx::query("SELECT id, name FROM holder WHERE singleton = 1 FOR UPDATE")
            .fetch_optional(transaction)
            .await?;
        let last = row
            .map(|row| Ok::<_, sqlx::Error>((row.try_get("id")?, row.try_get("name")?)))
            .transpose()?;
        self.compare(last)
    }

    /// Compares the last holder with this one, and notes that another one came after it.
    fn compare(&self, last: Option<(String, String)>) -> Result<(), StoreError> {
        let by = match last {
            Some((id, _)) if id == self.0.id => return Ok(()),
            Some((_, name)) => name,
            None => "nobody: its row is gone".to_owned(),
        };
        self.0.successor.send_replace(Some(by.clone()));
        Err(StoreError::Superseded(by))
    }

    /// Looks after the lock between writes, and waits until another gateway holds the database. Returns which.
    pub(super) async fn keep(&self) -> String {
        let mut successor = self.0.successor.subscribe();
        let look = async {
            loop {
                sleep(LOOK).await;
                // Until the database is back, each write says why it fails.
                let _ = self.confirm().await;
            }
        };
        tokio::select! {
            () = look => {}
            _ = successor.wait_for(Option::is_some) => {}
        }
        self.0.successor.borrow().clone().unwrap_or_default()
    }

    /// Gives the lock back.
    pub(super) async fn give_back(&self) {
        if let Some(session) = self.0.session.lock().await.take() {
            // The end of the connection does it, too.
            let _ = timeout(CONNECT_LIMIT, session.close()).await;
        }
    }
}

/// Returns an error that says that the database cannot be used now.
fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable(sqlx::Error::Io(io::Error::other(reason.to_owned())))
}

/// Opens a session whose end the server notices, also if the machine of this process ends.
async fn connect(url: &PostgresUrl, name: &str) -> Result<PgConnection, sqlx::Error> {
    let options: PgConnectOptions = url.options()?.application_name(name);
    let limit = Patience(Some(CONNECT_LIMIT));
    let mut session = limit.wait(PgConnection::connect_with(&options)).await?;
    let settings = session.execute(
        "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; SET statement_timeout = 5000",
    );
    limit.wait(settings).await?;
    Ok(session)
}

/// Tries to get the lock for some time.
async fn lock(session: &mut PgConnection, patience: Duration) -> Result<bool, sqlx::Error> {
    let tries = patience.as_millis() / PAUSE.as_millis();
    for attempt in 0..=tries {
        if attempt > 0 {
            sleep(PAUSE).await;
        }
        let row = sqlx::query(
            "SELECT pg_try_advisory_lock($1, hashtext(COALESCE(current_schema(), '')))",
        )
        .bind(LOCK)
        .fetch_one(&mut *session)
        .await?;
        if row.try_get(0)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns what is known of the session that has the lock.
async fn holder(session: &mut PgConnection) -> Result<String, sqlx::Error> {
    let row = sqlx::query(
        "SELECT a.application_name AS name, host(a.client_addr) AS address FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
         WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::bigint = $1 \
         AND l.objid::bigint = hashtext(COALESCE(current_schema(), ''))::bigint & 4294967295 \
         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .bind(i64::from(LOCK))
    .fetch_optional(session)
    .await?;
    let Some(row) = row else {
        return Ok("a session that has just ended".to_owned());
    };
    let name = row.try_get::<Option<String>, _>("name")?;
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| "a session of another role".to_owned());
    Ok(match row.try_get::<Option<String>, _>("address")? {
        Some(address) => format!("{name} at {address}"),
        None => name,
    })
}

/// Returns the name of this machine, short enough for the name of a session.
fn host() -> String {
    const LONGEST: usize = 32;
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim().chars().filter(char::is_ascii_graphic);
    name.take(LONGEST).collect()
}
