-- Whether an operator ended the run, and not what happened in its steps.
ALTER TABLE runs ADD COLUMN ended BOOLEAN NOT NULL DEFAULT FALSE;

-- A node out of service is recognised by nothing, so that its machine, or what is left of it, can come in anew.
DELETE FROM node_keys WHERE node IN (SELECT id FROM nodes WHERE state = 'decommissioned');
