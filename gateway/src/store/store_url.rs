//! Where the database is: the value of `--store`.

use std::{fmt, path::PathBuf, str::FromStr};

use sqlx::postgres::PgConnectOptions;

/// The database of a gateway.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A database of SQLite, in this file.
    Sqlite(PathBuf),
    /// A database of PostgreSQL.
    Postgres(PostgresUrl),
}

/// The URL of a database of PostgreSQL. Its text is shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

/// The text is no URL of a database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStoreUrl {
    /// The engine is unknown.
    #[error("expected sqlite:PATH or postgres://USER@HOST/DATABASE")]
    Engine,
    /// The file has no name.
    #[error("expected a path after sqlite:")]
    NoPath,
    /// The rest is wrong, with the reason.
    #[error("the URL of PostgreSQL is invalid: {0}")]
    Postgres(String),
}

impl FromStr for StoreUrl {
    type Err = InvalidStoreUrl;

    fn from_str(text: &str) -> Result<Self, InvalidStoreUrl> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(InvalidStoreUrl::NoPath),
                path => Ok(Self::Sqlite(path.into())),
            };
        }
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(InvalidStoreUrl::Engine);
        }
        let url = PostgresUrl(text.to_owned());
        url.options()
            .map_err(|e| InvalidStoreUrl::Postgres(reason(&e)))?;
        Ok(Self::Postgres(url))
    }
}

/// Returns the reason why a URL is refused, which never contains the URL.
fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Configuration(source) => source.to_string(),
        other => other.to_string(),
    }
}

impl PostgresUrl {
    /// Returns the URL with the password, for the engine only.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }

    /// Returns the options of a connection.
    pub(super) fn options(&self) -> Result<PgConnectOptions, sqlx::Error> {
        self.0.parse()
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.split(['?', '#']).next().unwrap_or_default();
        let (scheme, rest) = text.split_once("://").unwrap_or(("postgres", text));
        match rest.rsplit_once('@') {
            None => write!(f, "{scheme}://{rest}"),
            Some((user, place)) => {
                let user = user.split(':').next().unwrap_or_default();
                write!(f, "{scheme}://{user}@{place}")
            }
        }
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_one_of_two_engines_and_is_shown_without_its_password() {
        for (text, shown) in [
            ("sqlite:/a/b.db", "sqlite:/a/b.db"),
            ("sqlite:///a/b.db", "sqlite:/a/b.db"),
            ("sqlite:b c.db", "sqlite:b c.db"),
            ("postgres://h/d", "postgres://h/d"),
            (
                "postgresql://u:s%40crit@h:5/d?password=other",
                "postgresql://u@h:5/d",
            ),
            (
                "postgres://u@localhost/d?host=/run/x",
                "postgres://u@localhost/d",
            ),
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
        }
        for (text, reason) in [
            ("", "expected sqlite:PATH or postgres://"),
            ("mysql://h/d", "expected sqlite:PATH or postgres://"),
            ("/a/b.db", "expected sqlite:PATH or postgres://"),
            ("sqlite:", "expected a path"),
            ("postgres://h:port/d", "the URL of PostgreSQL is invalid"),
            ("postgres://h/d?sslmode=maybe", "unknown value"),
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
