//! The files of `migrations/`, embedded. They are listed by hand: the macro of sqlx that reads the folder has every database driver
//! compiled a second time, for the compiler's own machine.

use std::borrow::Cow;

use sqlx::{
    AssertSqlSafe, SqlSafeStr, SqlStr,
    migrate::{Migration, MigrationType, Migrator},
};

macro_rules! migrations {
    ($($version:literal $name:literal),* $(,)?) => {
        [$(($version, $name, include_str!(concat!("../../../migrations/", $version, "_", $name, ".sql")))),*]
    };
}

/// Each file's number, name and text.
const FILES: [(&str, &str, &str); 24] = migrations![
    "0001" "cluster",
    "0002" "queue_limit",
    "0003" "kernels",
    "0004" "pairs",
    "0005" "rate_mode",
    "0006" "cluster",
    "0007" "events",
    "0008" "splits",
    "0009" "keys",
    "0010" "plan_outcome",
    "0011" "audit",
    "0012" "operators",
    "0013" "variants",
    "0014" "key_limits",
    "0015" "reservations",
    "0016" "priority",
    "0017" "min_replicas",
    "0018" "measurements",
    "0019" "max_cold_wait",
    "0020" "preprocess",
    "0021" "tokenizers",
    "0022" "prediction_cache",
    "0023" "audit_before",
    "0024" "holder",
];

/// Returns the number of the newest migration.
pub(super) fn newest() -> i64 {
    i64::try_from(FILES.len()).unwrap_or(i64::MAX)
}

/// Brings a database of SQLite to this version's tables.
pub(super) fn of_sqlite() -> Migrator {
    migrator(SqlSafeStr::into_sql_str)
}

/// Brings a database of PostgreSQL to this version's tables.
pub(super) fn of_postgres() -> Migrator {
    migrator(|text| AssertSqlSafe(with_binary_collation(text)).into_sql_str())
}

/// Has PostgreSQL compare texts as SQLite does, byte by byte, whatever the locale of the database: rows come in the same order, and an index
/// stays right when the operating system's locales change. Its result must never change, as its checksum is in the databases.
fn with_binary_collation(text: &str) -> String {
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start().starts_with("--") {
            changed.push_str(line);
        } else {
            changed.push_str(&line.replace(" TEXT", " TEXT COLLATE \"C\""));
        }
        changed.push('\n');
    }
    changed
}

fn migrator(to_sql: impl Fn(&'static str) -> SqlStr) -> Migrator {
    let migration = |(version, name, text): (&str, &'static str, &'static str)| {
        let version = version.parse().expect("a file's number");
        let description = Cow::Owned(name.replace('_', " "));
        let kind = MigrationType::Simple;
        Migration::new(version, description, kind, to_sql(text), false)
    };
    Migrator::with_migrations(FILES.map(migration).to_vec())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    #[test]
    fn every_file_of_the_folder_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
        let mut files: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed = super::FILES.map(|(version, name, _)| format!("{version}_{name}.sql"));
        assert_eq!(files, listed);
    }
}
