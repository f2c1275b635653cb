-- True: the model's answers are kept in the gateway's memory, and given again to requests with the same inputs.
ALTER TABLE models ADD COLUMN cache BOOLEAN NOT NULL DEFAULT FALSE;
