-- The stored file that cuts a model's texts into tokens; NULL: the model takes none. It stays for as long as a model names it.
ALTER TABLE models ADD COLUMN tokenizer TEXT REFERENCES artifacts (digest);

CREATE INDEX models_by_tokenizer ON models (tokenizer);
