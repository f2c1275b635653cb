//! Both engines have the same tables, and the list of them is complete.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_gateway::store::{ColumnKind, TABLES};
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use crate::place::Place;

/// A column: its type, whether it may be NULL, and its default.
type Column = (String, bool, Option<String>);
/// The columns, the columns of the primary key, the columns of each index, and the references of a table.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shape {
    columns: BTreeMap<String, Column>,
    primary_key: Vec<String>,
    indexes: BTreeSet<String>,
    references: BTreeSet<String>,
}

#[tokio::test]
async fn both_engines_have_the_same_tables() {
    let Some(postgres) = Place::postgres().await else {
        return;
    };
    let sqlite = Place::sqlite();
    for place in [&postgres, &sqlite] {
        place.open().await.close().await;
    }
    let of_sqlite = shapes_of_sqlite(&mut sqlite.connect().await).await;
    let of_postgres = shapes_of_postgres(&mut postgres.connect().await).await;
    assert!(of_sqlite["models"].columns.len() > 20);
    assert_eq!(of_sqlite["models"].references.len(), 2);
    for (name, shape) in &of_sqlite {
        assert_eq!(Some(shape), of_postgres.get(name), "{name}");
    }
    assert_eq!(of_sqlite.len(), of_postgres.len());

    let kind = |kind| match kind {
        ColumnKind::Integer => "bigint",
        ColumnKind::Real => "double precision",
        ColumnKind::Text => "text",
        ColumnKind::Truth => "boolean",
    };
    let listed: BTreeMap<_, BTreeMap<_, _>> = TABLES
        .iter()
        .map(|table| {
            let columns = table.columns.iter();
            let columns = columns.map(|(name, of)| ((*name).to_owned(), kind(*of).to_owned()));
            (table.name.to_owned(), columns.collect())
        })
        .collect();
    let found: BTreeMap<_, BTreeMap<_, _>> = of_sqlite
        .iter()
        .filter(|(name, _)| *name != "holder")
        .map(|(name, shape)| {
            let columns = shape.columns.iter();
            let columns = columns.map(|(name, (kind, ..))| (name.clone(), kind.clone()));
            (name.clone(), columns.collect())
        })
        .collect();
    assert_eq!(listed, found);
}

#[tokio::test]
async fn postgres_compares_texts_byte_by_byte() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    place.open().await.close().await;
    let statement = "SELECT table_name::text AS t, column_name::text AS c FROM information_schema.columns \
         WHERE table_schema = current_schema() AND data_type = 'text' AND table_name NOT LIKE '\\_%' \
         AND collation_name IS DISTINCT FROM 'C'";
    let others = sqlx::query(statement)
        .fetch_all(&mut place.connect().await)
        .await
        .unwrap();
    let others: Vec<(String, String)> = others.iter().map(|r| (r.get(0), r.get(1))).collect();
    assert_eq!(others, []);
}

async fn texts(database: &mut AnyConnection, statement: String) -> Vec<Vec<Option<String>>> {
    let rows = sqlx::query(AssertSqlSafe(statement))
        .fetch_all(database)
        .await
        .unwrap();
    rows.iter()
        .map(|row| (0..row.len()).map(|index| row.get(index)).collect())
        .collect()
}

async fn shapes_of_sqlite(database: &mut AnyConnection) -> BTreeMap<String, Shape> {
    let tables =
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'";
    let mut shapes = BTreeMap::new();
    for table in texts(database, tables.to_owned()).await {
        let table = table[0].clone().unwrap();
        let mut shape = Shape::default();
        let columns = format!(
            "SELECT name, lower(type), CAST(\"notnull\" AS TEXT), dflt_value, CAST(pk AS TEXT) FROM pragma_table_info('{table}') ORDER BY pk"
        );
        for column in texts(database, columns).await {
            let [name, kind, not_null, default, key] = column.try_into().unwrap();
            let name = name.unwrap();
            if key.unwrap() != "0" {
                shape.primary_key.push(name.clone());
            }
            let default = default.map(|text| text.replace('\'', "").to_lowercase());
            let column = (kind.unwrap(), not_null.unwrap() == "0", default);
            shape.columns.insert(name, column);
        }
        let indexes = format!(
            "SELECT group_concat(i.name, ' ') FROM pragma_index_list('{table}') l, pragma_index_info(l.name) i WHERE l.origin = 'c' GROUP BY l.name"
        );
        shape.indexes = texts(database, indexes)
            .await
            .into_iter()
            .filter_map(|mut row| row.remove(0))
            .collect();
        let references = format!(
            "SELECT \"from\" || ' ' || \"table\" || ' ' || \"to\" FROM pragma_foreign_key_list('{table}')"
        );
        shape.references = texts(database, references)
            .await
            .into_iter()
            .filter_map(|mut row| row.remove(0))
            .collect();
        shapes.insert(table, shape);
    }
    shapes
}

async fn shapes_of_postgres(database: &mut AnyConnection) -> BTreeMap<String, Shape> {
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() AND tablename NOT LIKE '\\_%'";
    let mut shapes = BTreeMap::new();
    for table in texts(database, tables.to_owned()).await {
        let table = table[0].clone().unwrap();
        let mut shape = Shape::default();
        let columns = format!(
            "SELECT column_name::text, data_type::text, is_nullable::text, column_default::text FROM information_schema.columns \
             WHERE table_schema = current_schema() AND table_name = '{table}'"
        );
        for column in texts(database, columns).await {
            let [name, kind, nullable, default] = column.try_into().unwrap();
            let default = default.map(|text| {
                let text = text.split("::").next().unwrap_or_default().to_owned();
                text.replace('\'', "").to_lowercase()
            });
            let column = (kind.unwrap(), nullable.unwrap() == "YES", default);
            shape.columns.insert(name.unwrap(), column);
        }
        let indexes = format!(
            "SELECT (i.indisprimary)::text, string_agg(a.attname::text, ' ' ORDER BY k.place) FROM pg_index i \
             CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place) \
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number \
             WHERE i.indrelid = '{table}'::regclass GROUP BY i.indexrelid, i.indisprimary"
        );
        for index in texts(database, indexes).await {
            let [is_primary, columns] = index.try_into().unwrap();
            let columns = columns.unwrap();
            if is_primary.unwrap() == "true" {
                shape.primary_key = columns.split(' ').map(str::to_owned).collect();
            } else {
                shape.indexes.insert(columns);
            }
        }
        let references = format!(
            "SELECT a.attname::text || ' ' || c.confrelid::regclass::text || ' ' || b.attname::text FROM pg_constraint c \
             JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1] \
             JOIN pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = c.confkey[1] \
             WHERE c.contype = 'f' AND c.conrelid = '{table}'::regclass"
        );
        shape.references = texts(database, references)
            .await
            .into_iter()
            .filter_map(|mut row| row.remove(0))
            .collect();
        shapes.insert(table, shape);
    }
    shapes
}
