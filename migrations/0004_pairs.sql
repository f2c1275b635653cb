-- What was measured of pairs of replicas beside each other, as CSV: a table for each kind of device.
CREATE TABLE pairs (
    device_kind TEXT NOT NULL PRIMARY KEY,
    csv TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);
