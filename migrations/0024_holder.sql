-- The gateway that holds the database, where it is not a file that a lock of the file system protects: every transaction that writes finds
-- out here whether it is still its own gateway's. Empty in a file.
CREATE TABLE holder (
    -- Always 1: there is one row.
    singleton BIGINT PRIMARY KEY NOT NULL,
    -- The random identity of the process's hold.
    id TEXT NOT NULL,
    -- The process, for people.
    name TEXT NOT NULL,
    since_ms BIGINT NOT NULL
);
