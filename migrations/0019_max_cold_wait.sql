-- The most milliseconds for which a request waits for a model that is loaded from its file; NULL: as long as the objective.
ALTER TABLE models ADD COLUMN max_cold_wait_ms BIGINT;
