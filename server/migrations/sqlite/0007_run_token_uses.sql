-- Uses are counted in memory, where counting one needs no right to write.
ALTER TABLE run_tokens DROP COLUMN minute_at;
ALTER TABLE run_tokens DROP COLUMN uses;
