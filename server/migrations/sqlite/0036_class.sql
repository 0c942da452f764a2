-- expand: columns that older versions leave as they are.
--
-- How long a node and its system are meant to live: `persistent`, `ephemeral` or `spot`.
ALTER TABLE nodes ADD COLUMN class TEXT NOT NULL DEFAULT 'persistent';
-- The run that is done again when the machine boots slipway, if any.
ALTER TABLE nodes ADD COLUMN anew TEXT;
-- When its system reported that it runs: only a boot of slipway after that counts.
ALTER TABLE nodes ADD COLUMN anew_since BIGINT;
