//! A proxy before a server of PostgreSQL that counts round trips, and ends or silences the session of a chosen one.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream, UnixStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
};

/// The statement of a round trip that has none.
const PING: &str = "nothing";

/// The fate of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The server never gets it: its session is ended first.
    Before,
    /// The server carries it out, and its answer is lost.
    After,
}

/// A proxy, which ends with the runtime.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    plan: Arc<Mutex<Plan>>,
    silent: watch::Sender<bool>,
}

#[derive(Default)]
struct Plan {
    /// The number of round trips since the last [`Proxy::expect`].
    seen: usize,
    fatal: Option<(usize, Fate)>,
    /// The statement that met its fate.
    struck: Option<String>,
}

impl Proxy {
    /// Starts a proxy to a socket of a server. Sessions are ended by statements on `admin_url`.
    pub(crate) async fn start(socket: PathBuf, admin_url: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let this = Self {
            port: listener.local_addr().unwrap().port(),
            plan: Arc::default(),
            silent: watch::Sender::new(false),
        };
        let proxy = this.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                client.set_nodelay(true).unwrap();
                // A server that is down refuses, and so does this.
                if let Ok(server) = UnixStream::connect(&socket).await {
                    tokio::spawn(proxy.clone().carry(client, server, admin_url.clone()));
                }
            }
        });
        this
    }

    /// Counts from 0 again. The round trip with this number meets its fate.
    pub(crate) fn expect(&self, fatal: Option<(usize, Fate)>) {
        *self.plan.lock().unwrap() = Plan {
            fatal,
            ..Plan::default()
        };
    }

    /// Returns the number of round trips since [`Proxy::expect`], and the statement that met its fate.
    pub(crate) fn seen(&self) -> (usize, Option<String>) {
        let plan = self.plan.lock().unwrap();
        (plan.seen, plan.struck.clone())
    }

    /// Has nothing pass, or all again. Connections are made, and stay open.
    pub(crate) fn silence(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    fn next(&self, statement: &str) -> Option<Fate> {
        let mut plan = self.plan.lock().unwrap();
        let number = plan.seen;
        plan.seen += 1;
        let (fatal, fate) = plan.fatal?;
        (number == fatal).then(|| {
            plan.struck = Some(statement.to_owned());
            fate
        })
    }

    async fn carry(self, client: TcpStream, server: UnixStream, admin_url: String) {
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (pid_sender, pid) = oneshot::channel();
        let (swallow, swallowed) = watch::channel(false);
        let silent = self.silent.subscribe();
        let back = tokio::spawn(answers(
            from_server,
            to_client,
            pid_sender,
            swallowed,
            silent,
        ));
        self.requests(from_client, to_server, pid, swallow, admin_url)
            .await;
        back.abort();
    }

    async fn requests(
        self,
        mut from: OwnedReadHalf,
        mut to: tokio::net::unix::OwnedWriteHalf,
        pid: oneshot::Receiver<i32>,
        swallow: watch::Sender<bool>,
        admin_url: String,
    ) {
        let mut silent = self.silent.subscribe();
        let mut pid = Some(pid);
        // The first message has no kind.
        let Ok(length) = from.read_u32().await else {
            return;
        };
        let mut first = vec![0; length as usize - 4];
        if from.read_exact(&mut first).await.is_err() {
            return;
        }
        let _ = to.write_u32(length).await;
        let _ = to.write_all(&first).await;
        // The texts of the statements that are prepared.
        let mut prepared = HashMap::new();
        let mut statement = PING.to_owned();
        while let Some((kind, body)) = message(&mut from).await {
            let _ = silent.wait_for(|silent| !silent).await;
            let mut texts = body.split(|byte| *byte == 0);
            let mut next_text = || {
                texts
                    .next()
                    .map(String::from_utf8_lossy)
                    .unwrap_or_default()
            };
            match kind {
                b'P' => {
                    let name = next_text().into_owned();
                    statement = next_text().into_owned();
                    prepared.insert(name, statement.clone());
                }
                b'B' => {
                    next_text();
                    statement = prepared[&*next_text()].clone();
                }
                b'Q' => statement = next_text().into_owned(),
                _ => {}
            }
            let fate = match kind {
                b'Q' | b'S' => self.next(&std::mem::replace(&mut statement, PING.to_owned())),
                _ => None,
            };
            if fate == Some(Fate::Before) {
                let pid = pid.take().unwrap().await.unwrap();
                terminate(&admin_url, pid).await;
                return;
            }
            if fate == Some(Fate::After) {
                swallow.send_replace(true);
            }
            let mut all = vec![kind];
            all.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
            all.extend(body);
            if to.write_all(&all).await.is_err() {
                return;
            }
            if fate == Some(Fate::After) {
                // The answers end the connection once they have seen all.
                swallow.closed().await;
                return;
            }
        }
    }
}

/// Carries the answers of a server to its client, up to one that is swallowed.
async fn answers(
    mut from: tokio::net::unix::OwnedReadHalf,
    mut to: OwnedWriteHalf,
    pid: oneshot::Sender<i32>,
    swallowed: watch::Receiver<bool>,
    mut silent: watch::Receiver<bool>,
) {
    let mut pid = Some(pid);
    while let Some((kind, body)) = message(&mut from).await {
        let _ = silent.wait_for(|silent| !silent).await;
        if kind == b'K'
            && let Some(pid) = pid.take()
        {
            let number = i32::from_be_bytes(body[..4].try_into().unwrap());
            let _ = pid.send(number);
        }
        if *swallowed.borrow() {
            // `Z`: ready for the next request.
            if kind == b'Z' {
                return;
            }
            continue;
        }
        let mut all = vec![kind];
        all.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        all.extend(body);
        if to.write_all(&all).await.is_err() {
            return;
        }
    }
}

async fn message(from: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let kind = from.read_u8().await.ok()?;
    let length = from.read_u32().await.ok()?;
    let mut body = vec![0; length as usize - 4];
    from.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

/// Ends a session, and waits until it is gone.
async fn terminate(admin_url: &str, pid: i32) {
    use sqlx::{AnyConnection, Connection as _, Row as _};

    let mut admin = AnyConnection::connect(admin_url).await.unwrap();
    sqlx::query("SELECT pg_terminate_backend($1)")
        .bind(pid)
        .execute(&mut admin)
        .await
        .unwrap();
    loop {
        let row = sqlx::query("SELECT COUNT(*) FROM pg_stat_activity WHERE pid = $1")
            .bind(pid)
            .fetch_one(&mut admin)
            .await
            .unwrap();
        if row.get::<i64, _>(0) == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    admin.close().await.unwrap();
}
