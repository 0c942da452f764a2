-- expand: a column with a default, which older versions neither write nor read.
--
-- By how many milliseconds the clock of the server's host was ahead of that of the database at its last sign of life.
ALTER TABLE servers ADD COLUMN clock_ahead BIGINT NOT NULL DEFAULT 0;
