-- The identity of this store, made once. Agents obey the cluster that they know, so that a restored backup is told from another store.
CREATE TABLE cluster (
    -- Always 1: there is one row.
    singleton BIGINT PRIMARY KEY NOT NULL,
    id TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);

-- The tokens of single nodes, as the SHA-256 of the token in hexadecimal digits. A node with a token of its own is leased with it only.
CREATE TABLE node_tokens (
    node TEXT PRIMARY KEY NOT NULL,
    token_sha256 TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);

-- When a model last stopped using a file, or somebody last stored it: unused files are deleted some time later. NULL: at created_ms.
ALTER TABLE artifacts ADD COLUMN last_used_ms BIGINT;

-- The counts and the goodput of a plan as JSON, so that listing plans does not read them whole. NULL in rows of earlier versions until
-- the store is next opened.
ALTER TABLE plans ADD COLUMN summary TEXT;
