-- What the gateway must not forget. Portable between SQLite and PostgreSQL: numbers are BIGINT or DOUBLE PRECISION, times are
-- BIGINT milliseconds since 1970, structures are JSON in TEXT, identities are TEXT as the API spells them.

-- One row per start of a gateway. The number is the fencing token that agents compare: they obey nothing of an older one.
CREATE TABLE epochs (
    epoch BIGINT PRIMARY KEY NOT NULL,
    started_ms BIGINT NOT NULL
);

-- Model files that are complete and checked on disk, by their SHA-256 (`sha256:` and 64 hexadecimal digits).
CREATE TABLE artifacts (
    digest TEXT PRIMARY KEY NOT NULL,
    bytes BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
);

-- Registered versions of models. A model's state is computed, never stored; only that it can never be served is kept, because
-- finding that out again would mean starting a worker that is known to fail.
CREATE TABLE models (
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    artifact TEXT NOT NULL REFERENCES artifacts (digest),
    max_batch_size BIGINT NOT NULL,
    -- JSON arrays of tensor specifications.
    inputs TEXT NOT NULL,
    outputs TEXT NOT NULL,
    slo_ms DOUBLE PRECISION NOT NULL,
    rate_rps DOUBLE PRECISION NOT NULL,
    -- Why it cannot be served as it is registered; NULL while nothing speaks against it.
    failure TEXT,
    -- The newest plan there was when it was registered: what plans up to it say of this name is about an earlier model.
    after_plan BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE INDEX models_by_artifact ON models (artifact);

-- What was measured or imported, one row per model version and kind of device. A profile may be imported before its model is
-- registered, hence no foreign key; removing a model removes its profiles.
CREATE TABLE profiles (
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    device_kind TEXT NOT NULL,
    -- The rows in the CSV contract, header included.
    csv TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (name, version, device_kind)
);

-- Nodes that have ever held a lease, as they last reported themselves.
CREATE TABLE nodes (
    name TEXT PRIMARY KEY NOT NULL,
    agent_version TEXT NOT NULL,
    -- JSON array of device reports.
    devices TEXT NOT NULL,
    -- What the admin wants of it: open, cordoned or draining.
    scheduling TEXT NOT NULL
);

-- Plans as they were adopted, newest last; old ones are pruned, the newest never.
CREATE TABLE plans (
    generation BIGINT PRIMARY KEY NOT NULL,
    policy TEXT NOT NULL,
    reason TEXT NOT NULL,
    solve_ms DOUBLE PRECISION NOT NULL,
    created_ms BIGINT NOT NULL,
    -- JSON arrays of placements and forecasts.
    replicas TEXT NOT NULL,
    models TEXT NOT NULL
);

-- What an admin can change at run time: the placement policy and the dispatch discipline.
CREATE TABLE settings (
    name TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
);
