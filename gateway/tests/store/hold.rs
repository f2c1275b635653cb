//! One gateway has a database of PostgreSQL at a time.

use packhorse_cluster::{ArtifactDigest, ByteCount};
use packhorse_gateway::store::{ArtifactFiles, OpenStoreError, SnapshotError, Store, StoreError};
use sqlx::Row as _;

use crate::place::Place;

fn digest(byte: u8) -> ArtifactDigest {
    ArtifactDigest::from_sha256([byte; 32])
}

/// Ends the sessions that have advisory locks in this place's database, and waits until they are gone.
async fn end_lock_sessions(place: &Place) -> usize {
    const SESSIONS: &str = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
         WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    let mut admin = place.connect().await;
    let sessions = sqlx::query(SESSIONS).fetch_all(&mut admin).await.unwrap();
    for session in &sessions {
        sqlx::query("SELECT pg_terminate_backend($1)")
            .bind(session.get::<i32, _>(0))
            .execute(&mut admin)
            .await
            .unwrap();
    }
    while !sqlx::query(SESSIONS)
        .fetch_all(&mut admin)
        .await
        .unwrap()
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    sessions.len()
}

#[tokio::test]
async fn a_second_gateway_is_refused_and_told_who_holds_the_database() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let first = place.open().await;
    let refused = Store::open_at(&place.url).await.unwrap_err();
    assert!(
        matches!(refused, OpenStoreError::Held { .. }),
        "{refused:?}"
    );
    let text = refused.to_string();
    assert!(
        text.contains("is in use by packhorse-gateway on "),
        "{text}"
    );
    assert!(
        text.contains(&format!("({})", std::process::id())),
        "{text}"
    );
    assert!(text.contains("--store"), "{text}");
    // The first one has noticed nothing, and another database is free.
    first.insert_artifact(digest(1), 1).await.unwrap();
    place.another().await.open().await.close().await;
    first.close().await;
    place.open().await;
}

#[tokio::test]
async fn a_lock_whose_session_ends_is_taken_again_before_the_next_write() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let store = place.open().await;
    assert_eq!(end_lock_sessions(&place).await, 1);
    store.insert_artifact(digest(1), 1).await.unwrap();
    let refused = Store::open_at(&place.url).await.unwrap_err();
    assert!(
        matches!(refused, OpenStoreError::Held { .. }),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_gateway_whose_successor_has_begun_changes_nothing_any_more() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let former = place.open().await;
    assert_eq!(former.begin_epoch().await.unwrap(), 1);
    assert_eq!(end_lock_sessions(&place).await, 1);
    let successor = place.open().await;
    assert_eq!(successor.begin_epoch().await.unwrap(), 2);
    // With its successor there, and after it: a lock that is free again does not make what the former one remembers right.
    for round in 0..2 {
        for refused in [
            former.insert_artifact(digest(1), 1).await.unwrap_err(),
            former.begin_epoch().await.unwrap_err(),
            former.begin_epoch_at(99).await.unwrap_err(),
            // A write that changes no row is fenced like any other.
            former.delete_key("nobody").await.unwrap_err(),
        ] {
            assert!(matches!(refused, StoreError::Superseded(_)), "{refused:?}");
            let text = refused.to_string();
            assert!(
                text.contains("another gateway has taken the database"),
                "{text}"
            );
            assert!(text.contains("packhorse-gateway on "), "{text}");
        }
        if round == 0 {
            assert!(successor.insert_artifact(digest(2), 1).await.unwrap());
            successor.close().await;
        }
    }
    let next = place.open().await;
    assert_eq!(next.artifacts().await.unwrap(), [(digest(2), 1)]);
    assert_eq!(next.begin_epoch().await.unwrap(), 3);
}

#[tokio::test]
async fn a_transaction_of_a_former_gateway_that_is_late_is_refused_by_its_own_statement() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let former = place.open().await;
    former.insert_artifact(digest(1), 1).await.unwrap();
    // Its lock is there, but the row is another's: what a successor leaves that the former one has not noticed.
    place
        .carry_out(&["UPDATE holder SET id = 'other', name = 'packhorse-gateway on other (1)'"])
        .await;
    let refused = former.insert_artifact(digest(2), 1).await.unwrap_err();
    assert!(matches!(refused, StoreError::Superseded(_)), "{refused:?}");
    assert_eq!(former.artifacts().await.unwrap(), [(digest(1), 1)]);
}

#[tokio::test]
async fn a_backup_says_that_the_servers_own_tool_makes_it() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let folder = place.folder().join("artifacts");
    let limit = ByteCount::new(1 << 20);
    let files = ArtifactFiles::open(folder, Vec::new(), limit, place.open().await)
        .await
        .unwrap();
    let refused = files.snapshot().await.unwrap_err();
    assert!(matches!(refused, SnapshotError::NotAFile), "{refused:?}");
    assert!(refused.to_string().contains("pg_dump"), "{refused}");
}
