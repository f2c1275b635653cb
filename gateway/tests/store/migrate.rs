//! A cluster moves from one database to another, whole or not at all.

use packhorse_gateway::store::{StoreUrl, TransferError, transfer};

use crate::{
    acts::{ACTS, carry_out, furnish},
    place::Place,
    rows::rows,
};

/// Fills a database with something in every table.
async fn fill(place: &Place) {
    let store = place.open().await;
    furnish(&store).await.unwrap();
    for act in 0..ACTS {
        carry_out(act, &store).await.unwrap();
    }
    store
        .set_node_token(&"n1".parse().unwrap(), [3; 32])
        .await
        .unwrap();
    store.close().await;
    place
        .carry_out(&[
            "INSERT INTO profiles VALUES ('m', 2, 'T4', 'csv', 7, NULL)",
            "INSERT INTO measurements VALUES ('a', 'T4', 'b', '2', 'csv', 7)",
            "UPDATE models SET failure = 'Ünïcode \"quoted\" 猫', cache = TRUE, accuracy_pct = 0.1 WHERE name = 'm'",
        ])
        .await;
}

#[tokio::test]
async fn a_cluster_moves_there_and_back_with_every_row() {
    let Some(postgres) = Place::postgres().await else {
        return;
    };
    let (first, last) = (Place::sqlite(), Place::sqlite());
    fill(&first).await;
    let expected = rows(&mut first.connect().await, true).await;
    for (table, rows) in &expected {
        assert!(!rows.is_empty(), "{table} has no rows to move");
    }
    for (from, to) in [(&first, &postgres), (&postgres, &last)] {
        let counts = transfer(&from.url, &to.url).await.unwrap();
        let all: usize = expected.values().map(Vec::len).sum();
        assert_eq!(
            counts.iter().map(|(_, rows)| *rows).sum::<u64>(),
            all as u64
        );
        assert_eq!(rows(&mut to.connect().await, true).await, expected);
        // The source stays as it is.
        assert_eq!(rows(&mut from.connect().await, true).await, expected);
        // It is used as ever.
        let store = to.open().await;
        assert_eq!(store.begin_epoch().await.unwrap(), 51);
        store.close().await;
        to.carry_out(&["DELETE FROM epochs WHERE epoch = 51"]).await;
    }
}

#[tokio::test]
async fn only_a_cluster_that_nobody_has_moves_into_an_empty_database() {
    let Some(postgres) = Place::postgres().await else {
        return;
    };
    let (full, empty) = (Place::sqlite(), Place::sqlite());
    fill(&full).await;
    let refusal = async |from: &StoreUrl, to: &StoreUrl| transfer(from, to).await.unwrap_err();

    let error = refusal(&empty.url, &postgres.url).await;
    assert!(matches!(error, TransferError::NoCluster(_)), "{error:?}");
    let error = refusal(&postgres.url, &empty.url).await;
    assert!(matches!(error, TransferError::NoCluster(_)), "{error:?}");

    // A gateway has the target.
    let held = postgres.open().await;
    let error = refusal(&full.url, &postgres.url).await;
    assert!(
        error.to_string().contains("is in use by packhorse-gateway"),
        "{error}"
    );
    // The target has a row.
    held.update_settings(&packhorse_control::record::Settings {
        policy: Some("exclusive".to_owned()),
        ..Default::default()
    })
    .await
    .unwrap();
    held.close().await;
    let before = rows(&mut postgres.connect().await, true).await;
    let error = refusal(&full.url, &postgres.url).await;
    let text = error.to_string();
    assert!(
        text.contains("is not empty: its table settings has rows"),
        "{text}"
    );
    assert_eq!(rows(&mut postgres.connect().await, true).await, before);

    // A gateway has the folder of the source.
    let gateway = packhorse_service::StateDir::open(full.folder()).unwrap();
    let error = refusal(&full.url, &postgres.another().await.url).await;
    assert!(
        error.to_string().contains("in use by another process"),
        "{error}"
    );
    drop(gateway);

    // A source of another version.
    full.carry_out(&["DELETE FROM _sqlx_migrations WHERE version = 24"])
        .await;
    let error = refusal(&full.url, &postgres.another().await.url).await;
    assert!(
        matches!(
            error,
            TransferError::OtherVersion {
                found: 23,
                expected: 24,
                ..
            }
        ),
        "{error:?}"
    );
}
