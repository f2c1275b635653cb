//! The rows of a whole database, for comparisons.

use std::collections::BTreeMap;

use packhorse_gateway::store::{ColumnKind, TABLES};
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

/// The rows of each table, as text.
pub(crate) type Rows = BTreeMap<&'static str, Vec<String>>;

/// Reads all rows; without the columns that are times, if `times` is false.
pub(crate) async fn rows(database: &mut AnyConnection, times: bool) -> Rows {
    let mut all = Rows::new();
    for table in &TABLES {
        let columns: Vec<_> = table
            .columns
            .iter()
            .filter(|(name, _)| times || !name.ends_with("_ms"))
            .collect();
        let selected: Vec<String> = columns
            .iter()
            .map(|(name, kind)| match kind {
                ColumnKind::Truth => format!("CASE WHEN {name} THEN 1 ELSE 0 END AS {name}"),
                _ => (*name).to_owned(),
            })
            .collect();
        let statement = format!("SELECT {} FROM {}", selected.join(", "), table.name);
        let rows = sqlx::query(AssertSqlSafe(statement))
            .fetch_all(&mut *database)
            .await
            .unwrap();
        let mut lines: Vec<String> = rows
            .iter()
            .map(|row| {
                let cells = columns.iter().map(|(name, kind)| match kind {
                    ColumnKind::Integer | ColumnKind::Truth => {
                        format!("{:?}", row.try_get::<Option<i64>, _>(*name).unwrap())
                    }
                    ColumnKind::Real => {
                        format!("{:?}", row.try_get::<Option<f64>, _>(*name).unwrap())
                    }
                    ColumnKind::Text => {
                        format!("{:?}", row.try_get::<Option<String>, _>(*name).unwrap())
                    }
                });
                cells.collect::<Vec<_>>().join(", ")
            })
            .collect();
        lines.sort();
        all.insert(table.name, lines);
    }
    all
}
