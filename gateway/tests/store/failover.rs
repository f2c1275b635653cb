//! Sessions that end at each statement, servers that crash, and networks that go silent: nothing that is acknowledged is lost, what is refused
//! is not there, and the store goes on by itself.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::ArtifactDigest;
use packhorse_gateway::store::{Store, StoreError, StoreUrl};
use sqlx::{AnyConnection, Connection as _};

use crate::{
    acts::{ACTS, Refused, carry_out, furnish},
    place::make_database,
    postgres_server::Server,
    proxy::{Fate, Proxy},
    rows::{Rows, rows},
};

/// A store behind a proxy, and a way around it.
struct Behind {
    store: Store,
    direct: AnyConnection,
}

async fn behind(server: &Server, proxy: &Proxy) -> Behind {
    let direct = make_database(&server.url("postgres")).await;
    let name = direct
        .split('?')
        .next()
        .unwrap()
        .rsplit('/')
        .next()
        .unwrap()
        .to_owned();
    let port = proxy.port;
    let url = format!("postgres://packhorse@127.0.0.1:{port}/{name}?sslmode=disable");
    let url: StoreUrl = url.parse().unwrap();
    proxy.expect(None);
    let store = Store::open_at(&url).await.unwrap();
    furnish(&store).await.unwrap();
    Behind {
        store,
        direct: AnyConnection::connect(&direct).await.unwrap(),
    }
}

async fn found(behind: &mut Behind) -> Rows {
    let mut rows = rows(&mut behind.direct, false).await;
    // Its identity is random.
    rows.remove("cluster");
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_at_any_statement_loses_nothing_that_is_acknowledged() {
    let Some(server) = Server::start() else {
        return;
    };
    let proxy = Proxy::start(server.socket(), server.url("postgres")).await;
    // What all acts leave where nothing fails, and the round trips that each makes.
    let mut calm = behind(&server, &proxy).await;
    let mut expected = vec![found(&mut calm).await];
    let mut trips = Vec::new();
    for act in 0..ACTS {
        proxy.expect(None);
        assert_eq!(carry_out(act, &calm.store).await, Ok(()), "act {act}");
        trips.push(proxy.seen().0);
        expected.push(found(&mut calm).await);
    }
    calm.store.close().await;
    let most = trips.iter().copied().max().unwrap();
    let (mut struck, mut refused, mut uncertain) = (BTreeMap::<String, usize>::new(), 0, 0);
    for at in 0..most {
        for fate in [Fate::Before, Fate::After] {
            let mut behind = behind(&server, &proxy).await;
            for act in 0..ACTS {
                proxy.expect(Some((at, fate)));
                let done = carry_out(act, &behind.store).await;
                let (_, statement) = proxy.seen();
                proxy.expect(None);
                if let Some(statement) = &statement {
                    let word = statement.split(' ').take(2).collect::<Vec<_>>().join(" ");
                    *struck.entry(word).or_default() += 1;
                }
                let what = format!("act {act}, round trip {at} {fate:?}: {statement:?}");
                if statement.is_none() {
                    assert_eq!(done, Ok(()), "{what}");
                    continue;
                }
                let rows = found(&mut behind).await;
                if done == Ok(()) {
                    assert_eq!(rows, expected[act + 1], "{what}: acknowledged");
                    continue;
                }
                assert_eq!(done, Err(Refused::Uncertain), "{what}");
                refused += 1;
                if fate == Fate::After && statement.as_deref() == Some("COMMIT") {
                    uncertain += 1;
                    assert_eq!(
                        rows,
                        expected[act + 1],
                        "{what}: the commit was carried out"
                    );
                    continue;
                }
                assert_eq!(rows, expected[act], "{what}: refused");
                // It goes on by itself.
                assert_eq!(carry_out(act, &behind.store).await, Ok(()), "{what}: again");
                assert_eq!(found(&mut behind).await, expected[act + 1], "{what}: again");
            }
            behind.store.close().await;
        }
    }
    println!("{refused} refused, {uncertain} of them carried out; struck: {struck:?}");
    for word in [
        "BEGIN",
        "COMMIT",
        "INSERT INTO",
        "SELECT id,",
        "UPDATE models",
        "DELETE FROM",
    ] {
        assert!(
            struck.contains_key(word),
            "{word} was never struck: {struck:?}"
        );
    }
    assert!(uncertain > ACTS / 2);
}

fn digest(number: u32) -> ArtifactDigest {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    ArtifactDigest::from_sha256(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_during_writes_loses_nothing_and_writes_go_on_when_it_is_back() {
    const CRASHES: u32 = 4;
    let Some(mut server) = Server::start() else {
        return;
    };
    let url = make_database(&server.url("postgres")).await;
    let store = Store::open_at(&url.parse().unwrap()).await.unwrap();
    let mut acknowledged = Vec::new();
    let (mut number, mut refused) = (0, 0);
    for crash in 0..CRASHES {
        // Writes run while the server ends.
        let writer = tokio::spawn({
            let store = store.clone();
            let first = number;
            async move {
                let mut stored = Vec::new();
                for number in first.. {
                    match store.insert_artifact(digest(number), 1).await {
                        Ok(_) => stored.push(number),
                        Err(error) => return (stored, number + 1, error),
                    }
                }
                unreachable!("numbers do not end")
            }
        });
        while store.artifacts().await.unwrap().len() < acknowledged.len() + 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.kill();
        let (stored, next, error) = writer.await.unwrap();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(
            error.to_string().contains("cannot be read or written now"),
            "{error}"
        );
        acknowledged.extend(stored);
        number = next;
        refused += 1;
        // Reads and writes are refused, at once, as long as it is away.
        for _ in 0..3 {
            let error = store.insert_artifact(digest(number), 1).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
            let error = store.artifacts().await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
        server.resume();
        store.insert_artifact(digest(number), 1).await.unwrap();
        acknowledged.push(number);
        number += 1;
        println!("crash {crash}: {} acknowledged", acknowledged.len());
    }
    let stored = store.artifacts().await.unwrap();
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|number| !stored.iter().any(|(stored, _)| *stored == digest(**number)))
        .collect();
    assert_eq!(
        lost,
        Vec::<&u32>::new(),
        "of {} acknowledged",
        acknowledged.len()
    );
    assert!(stored.len() <= acknowledged.len() + refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_silent_is_given_up_and_used_again() {
    let Some(server) = Server::start() else {
        return;
    };
    let proxy = Proxy::start(server.socket(), server.url("postgres")).await;
    let behind = behind(&server, &proxy).await;
    proxy.silence(true);
    let error = behind
        .store
        .insert_artifact(digest(1), 1)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("has not answered within"), "{source}");
    proxy.silence(false);
    let mut again = behind.store.insert_artifact(digest(1), 1).await;
    // The server may still have the lock's old session, and end it only now.
    for _ in 0..20 {
        if again.is_ok() {
            break;
        }
        again = behind.store.insert_artifact(digest(1), 1).await;
    }
    assert!(again.unwrap());
}
