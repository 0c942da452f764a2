-- expand: a table that older versions do not use.
--
-- How the power of a node's machine is switched, whether it is on, and the newest thing that was asked for.
CREATE TABLE power (
    node TEXT COLLATE "C" PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    settings_json TEXT COLLATE "C" NOT NULL,
    -- Encrypted.
    password BYTEA,
    -- `on` or `off`. Empty if it is unknown.
    state TEXT COLLATE "C",
    state_at BIGINT,
    act_json TEXT COLLATE "C",
    -- The last act that failed, until a later one succeeds.
    failed_json TEXT COLLATE "C",
    act_state TEXT COLLATE "C",
    -- Limit in seconds of a program that was started for the machine and is not known to have ended.
    busy_for BIGINT
);
CREATE INDEX power_acts ON power (act_state) WHERE act_state IS NOT NULL;
