-- What the gateway makes of pictures before they are a model's inputs, and of its outputs before they are classes, as JSON; NULL: nothing.
ALTER TABLE models ADD COLUMN processing TEXT;
