-- The priority of a model over others, 0 to 9.
ALTER TABLE models ADD COLUMN priority BIGINT NOT NULL DEFAULT 5;
