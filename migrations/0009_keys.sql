-- API keys of clients and admins.
CREATE TABLE keys (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    -- The SHA-256 of the key in hexadecimal digits.
    sha256 TEXT NOT NULL,
    -- That of the key before the last rotation, and the Unix time in milliseconds until which it is valid.
    previous_sha256 TEXT,
    previous_until_ms BIGINT,
    -- The permissions, as a JSON list of texts.
    scopes TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    -- NULL for never.
    expires_ms BIGINT,
    -- The most inference requests per second and at the same time. NULL for no limit.
    rate_rps DOUBLE PRECISION,
    max_in_flight BIGINT,
    last_used_ms BIGINT
);
