-- The part of the declared rate in the planned one: declared, measured, max or min.
ALTER TABLE models ADD COLUMN rate_mode TEXT NOT NULL DEFAULT 'max';
