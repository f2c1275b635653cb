-- The least number of devices that a model has replicas on.
ALTER TABLE models ADD COLUMN min_replicas BIGINT NOT NULL DEFAULT 1;
