-- expand: a column that has a default.
--
-- Two steps of a run may have the same action, such as the writes of two disks. Empty where it was not noted: such times
-- count for each step with the action, until newer ones take their place.
ALTER TABLE step_times ADD COLUMN step TEXT NOT NULL DEFAULT '';
