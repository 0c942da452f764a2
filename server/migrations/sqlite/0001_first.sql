-- Times are milliseconds since 1970. Columns called *_json hold one value as the protocol crate, or the server, writes it.

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE nodes (
    id TEXT PRIMARY KEY,
    name TEXT UNIQUE,
    state TEXT NOT NULL,
    -- False for a machine that knocked without being known: it may be forgotten to make room for others.
    registered BOOLEAN NOT NULL,
    released BOOLEAN NOT NULL,
    claim_code TEXT UNIQUE,
    identity_json TEXT NOT NULL,
    inventory_json TEXT,
    timing_json TEXT,
    agent_version TEXT,
    boot_id TEXT,
    created_at BIGINT NOT NULL,
    last_seen BIGINT,
    enrolled_at BIGINT,
    -- The newest run. No foreign key, because runs point here.
    run TEXT
);

-- What a node is recognised by. The primary key is what keeps two nodes from sharing a key.
CREATE TABLE node_keys (
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    PRIMARY KEY (kind, value)
);
CREATE INDEX node_keys_node ON node_keys (node);

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    -- The steps as handed to the node, and where each stands.
    workflow_json TEXT NOT NULL,
    steps_json TEXT NOT NULL,
    last_seq BIGINT NOT NULL,
    -- SHA-256 of the token in the phone-home URL; null when the installed system is not asked to report.
    phone_home_hash TEXT UNIQUE,
    phone_home_json TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    phoned_home_at BIGINT
);
CREATE INDEX runs_node ON runs (node);

-- cloud-init instance ids given out by a run, for the metadata service's spelling of phone_home.
CREATE TABLE run_instances (
    instance_id TEXT PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE
);

-- Everything but progress, of which only the newest counts and which is kept with the step.
CREATE TABLE events (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq BIGINT NOT NULL,
    event_json TEXT NOT NULL,
    PRIMARY KEY (run, seq)
);

CREATE TABLE tokens (
    hash TEXT PRIMARY KEY,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    used_at BIGINT,
    used_by_address TEXT,
    node TEXT REFERENCES nodes (id) ON DELETE SET NULL
);

CREATE TABLE images (
    digest TEXT PRIMARY KEY,
    file_name TEXT NOT NULL,
    size BIGINT NOT NULL,
    raw_size BIGINT,
    raw_digest TEXT,
    added_at BIGINT NOT NULL
);

CREATE TABLE systems (
    name TEXT PRIMARY KEY,
    system_json TEXT NOT NULL,
    added_at BIGINT NOT NULL
);

CREATE TABLE logs (
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    boot_id TEXT NOT NULL,
    -- Bytes of log since boot before this chunk.
    first_byte BIGINT NOT NULL,
    run TEXT,
    -- Bytes, not text: a chunk may end within a character.
    data BLOB NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (node, boot_id, first_byte)
);
