-- Whether a run was unfinished in a backup that this store was restored from. Its machine does not get it until an
-- operator confirms it.
ALTER TABLE runs ADD COLUMN restored BOOLEAN NOT NULL DEFAULT FALSE;
