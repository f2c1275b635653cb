-- The splits of requests over the versions of a model: of the models that have one, or had more than one version.
CREATE TABLE splits (
    -- The name of the model.
    name TEXT PRIMARY KEY NOT NULL,
    -- The shares of the versions in percent that an admin gave, as JSON: {"1": 90, "2": 10}. NULL if the newest version takes over.
    split TEXT,
    -- The shares before the last change.
    previous TEXT,
    -- The choice of a version for a request: none or request-id.
    sticky TEXT NOT NULL,
    -- The version that has all requests until a newer one has taken over.
    stable BIGINT,
    -- The version that was rolled back by itself, and why.
    rejected BIGINT,
    rejected_reason TEXT
);
