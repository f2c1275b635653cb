-- The limits of a key for single models, as a JSON list of objects with model, rate_rps and max_in_flight. NULL for none.
ALTER TABLE keys ADD COLUMN model_limits TEXT;
