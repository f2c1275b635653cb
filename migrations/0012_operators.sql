-- The operators of a model's program, as JSON, from which its profile is estimated on kinds of device where it is not measured. NULL until
-- a node has found them.
ALTER TABLE models ADD COLUMN operators TEXT;
