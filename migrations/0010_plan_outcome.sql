-- What was observed while a plan was current, as JSON: seconds, and numbers of requests. NULL until another plan has replaced it.
ALTER TABLE plans ADD COLUMN outcome TEXT;
