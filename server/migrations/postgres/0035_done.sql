-- expand: columns that older versions leave as they are.
--
-- How many of the steps of a run were done by the failed run that it goes on with.
ALTER TABLE runs ADD COLUMN done BIGINT NOT NULL DEFAULT 0;
-- The boot of the machine in which the first step began.
ALTER TABLE runs ADD COLUMN boot_id TEXT COLLATE "C";
