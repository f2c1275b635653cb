-- The reserved rate of a model in requests per second. NULL without a reservation: the model is planned for its measured rate. SQLite changes no
-- column to one that may be NULL, so that another takes its place.
ALTER TABLE models ADD COLUMN reserved_rps DOUBLE PRECISION;
UPDATE models SET reserved_rps = rate_rps;
ALTER TABLE models DROP COLUMN rate_rps;
ALTER TABLE models RENAME COLUMN reserved_rps TO rate_rps;
