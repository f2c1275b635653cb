//! The tables of the database, for what treats them all alike.

/// The contents of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A whole number.
    Integer,
    /// Any number.
    Real,
    /// A text.
    Text,
    /// True or false.
    Truth,
}

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns.
    pub columns: &'static [(&'static str, ColumnKind)],
}

use ColumnKind::{Integer, Real, Text, Truth};

const fn table(name: &'static str, columns: &'static [(&'static str, ColumnKind)]) -> Table {
    Table { name, columns }
}

/// Every table of a cluster, after those that it refers to. That of the holder is of a database, not of a cluster.
pub const TABLES: [Table; 15] = [
    table(
        "cluster",
        &[
            ("singleton", Integer),
            ("id", Text),
            ("created_ms", Integer),
        ],
    ),
    table("epochs", &[("epoch", Integer), ("started_ms", Integer)]),
    table(
        "artifacts",
        &[
            ("digest", Text),
            ("bytes", Integer),
            ("created_ms", Integer),
            ("last_used_ms", Integer),
        ],
    ),
    table(
        "models",
        &[
            ("name", Text),
            ("version", Integer),
            ("artifact", Text),
            ("max_batch_size", Integer),
            ("inputs", Text),
            ("outputs", Text),
            ("slo_ms", Real),
            ("failure", Text),
            ("after_plan", Integer),
            ("created_ms", Integer),
            ("queue_limit", Integer),
            ("rate_mode", Text),
            ("operators", Text),
            ("family", Text),
            ("accuracy_pct", Real),
            ("rate_rps", Real),
            ("priority", Integer),
            ("min_replicas", Integer),
            ("max_cold_wait_ms", Integer),
            ("processing", Text),
            ("tokenizer", Text),
            ("cache", Truth),
        ],
    ),
    table(
        "profiles",
        &[
            ("name", Text),
            ("version", Integer),
            ("device_kind", Text),
            ("csv", Text),
            ("created_ms", Integer),
            ("kernels", Text),
        ],
    ),
    table(
        "measurements",
        &[
            ("artifact", Text),
            ("device_kind", Text),
            ("signature", Text),
            ("libtorch", Text),
            ("csv", Text),
            ("created_ms", Integer),
        ],
    ),
    table(
        "pairs",
        &[
            ("device_kind", Text),
            ("csv", Text),
            ("created_ms", Integer),
        ],
    ),
    table(
        "nodes",
        &[
            ("name", Text),
            ("agent_version", Text),
            ("devices", Text),
            ("scheduling", Text),
        ],
    ),
    table(
        "node_tokens",
        &[
            ("node", Text),
            ("token_sha256", Text),
            ("created_ms", Integer),
        ],
    ),
    table(
        "plans",
        &[
            ("generation", Integer),
            ("policy", Text),
            ("reason", Text),
            ("solve_ms", Real),
            ("created_ms", Integer),
            ("replicas", Text),
            ("models", Text),
            ("outcome", Text),
            ("summary", Text),
        ],
    ),
    table("settings", &[("name", Text), ("value", Text)]),
    table(
        "splits",
        &[
            ("name", Text),
            ("split", Text),
            ("previous", Text),
            ("sticky", Text),
            ("stable", Integer),
            ("rejected", Integer),
            ("rejected_reason", Text),
        ],
    ),
    table(
        "keys",
        &[
            ("id", Text),
            ("name", Text),
            ("sha256", Text),
            ("previous_sha256", Text),
            ("previous_until_ms", Integer),
            ("scopes", Text),
            ("created_ms", Integer),
            ("expires_ms", Integer),
            ("rate_rps", Real),
            ("max_in_flight", Integer),
            ("last_used_ms", Integer),
            ("model_limits", Text),
        ],
    ),
    table("events", &[("id", Integer), ("kind", Text), ("body", Text)]),
    table(
        "audit",
        &[
            ("id", Integer),
            ("at_ms", Integer),
            ("actor", Text),
            ("key_id", Text),
            ("session", Integer),
            ("address", Text),
            ("action", Text),
            ("subject", Text),
            ("change", Text),
            ("before", Text),
        ],
    ),
];
