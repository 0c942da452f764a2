-- expand: a column that has a default.
--
-- Two steps of a run may have the same action, such as the writes of two disks. Times without a name are not used any
-- more: nobody can tell of which step they are.
ALTER TABLE step_times ADD COLUMN step TEXT COLLATE "C" NOT NULL DEFAULT '';
