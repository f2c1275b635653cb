-- The most requests that wait for a model; NULL: as many as the gateway lets wait for any.
ALTER TABLE models ADD COLUMN queue_limit BIGINT;
