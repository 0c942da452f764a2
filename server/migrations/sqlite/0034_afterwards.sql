-- expand: a column that older versions leave empty.
--
-- What becomes of the node once the run succeeded: `decommission` or `decommission-and-power-off`. Empty if the node
-- stays in service.
ALTER TABLE runs ADD COLUMN afterwards TEXT;
