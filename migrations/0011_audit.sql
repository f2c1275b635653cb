-- What admins did, oldest first. A row is written in the transaction of the act itself.
CREATE TABLE audit (
    id BIGINT PRIMARY KEY NOT NULL,
    at_ms BIGINT NOT NULL,
    -- The name of the API key, or of the admin token.
    actor TEXT NOT NULL,
    -- The identity of the API key. NULL for the admin token.
    key_id TEXT,
    -- 1 if a session of the dashboard acted for its owner, else 0.
    session BIGINT NOT NULL,
    -- The address that the request came from.
    address TEXT,
    -- The act, such as model.register, and the model, node or key that it is about. NULL for an act about the whole cluster.
    action TEXT NOT NULL,
    subject TEXT,
    -- The change, as JSON, without secrets.
    change TEXT NOT NULL
);
