-- The machine of a node is known by its key. `key_json` is the key that is let in; earlier ones are in node_key_changes.
ALTER TABLE nodes ADD COLUMN key_json TEXT;
-- Whether another key may take over once the machine with the present one is silent: from a release, or the start of a run,
-- to the end of that run.
ALTER TABLE nodes ADD COLUMN armed BOOLEAN NOT NULL DEFAULT FALSE;
-- Whether the machine with the present key said that it leaves for the system it installed.
ALTER TABLE nodes ADD COLUMN key_left BOOLEAN NOT NULL DEFAULT FALSE;
-- Whether an operator accepted MAC addresses as the only identifiers.
ALTER TABLE nodes ADD COLUMN mac_only BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE nodes ADD COLUMN required TEXT NOT NULL DEFAULT 'registered';
ALTER TABLE runs ADD COLUMN required TEXT NOT NULL DEFAULT 'registered';
-- The node that a token proves. Without one, it is the consent to let in one machine.
ALTER TABLE tokens ADD COLUMN made_for TEXT REFERENCES nodes (id) ON DELETE CASCADE;

CREATE TABLE node_key_changes (
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    key_json TEXT NOT NULL
);
CREATE INDEX node_key_changes_node ON node_key_changes (node);

-- Machines that ask to be let in and are not, each by its key. They are recognised by nothing else.
CREATE TABLE claimants (
    key TEXT PRIMARY KEY,
    -- The id of the node that it becomes if an operator lets it in as a new one.
    id TEXT NOT NULL UNIQUE,
    code TEXT NOT NULL UNIQUE,
    reason TEXT NOT NULL,
    -- The node that has identifiers of the machine.
    node TEXT REFERENCES nodes (id) ON DELETE SET NULL,
    address TEXT NOT NULL,
    -- The address, or the first 64 bits of it (IPv6), by which machines are counted.
    network TEXT NOT NULL,
    identity_json TEXT NOT NULL,
    -- What it sent when it asked last, for the record of the node that it may become.
    report_json TEXT NOT NULL,
    first_asked BIGINT NOT NULL,
    last_asked BIGINT NOT NULL
);
CREATE INDEX claimants_node ON claimants (node);

-- Machines that nobody registered ask again, with their keys.
DELETE FROM nodes WHERE NOT registered;
-- Nodes that have something to do let in the first machine with their identifiers, because their keys are not known yet.
UPDATE nodes SET armed = TRUE
WHERE released AND (run IS NULL OR run IN (SELECT id FROM runs WHERE state IN ('pending', 'running')));
UPDATE nodes SET mac_only = TRUE
WHERE identity_json NOT LIKE '%"uuid":%' AND identity_json NOT LIKE '%"serial":%';
ALTER TABLE nodes DROP COLUMN registered;
-- claim_code is left, because SQLite cannot drop a column that is unique. Codes belong to claimants.
UPDATE nodes SET claim_code = NULL;
