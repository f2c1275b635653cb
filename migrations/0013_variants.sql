-- The family that a model is a variant of, and its accuracy in percent. Both or neither are NULL.
ALTER TABLE models ADD COLUMN family TEXT;
ALTER TABLE models ADD COLUMN accuracy_pct DOUBLE PRECISION;
