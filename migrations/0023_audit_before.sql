-- What the act has replaced, as JSON with the fields of the change that were different. NULL if it has replaced nothing.
ALTER TABLE audit ADD COLUMN before TEXT;
