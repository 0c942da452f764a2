-- The schema that SQLite has after its migration 19, with the same names. Each later migration is in both folders.
--
-- Texts compare by their bytes, as in SQLite, whatever the locale of the database is. So indices also stay valid when
-- a newer C library sorts differently.
--
-- Times are milliseconds since 1970. Columns called *_json hold one value as the protocol crate, or the server, writes it.

CREATE TABLE settings (
    name TEXT COLLATE "C" PRIMARY KEY,
    value TEXT COLLATE "C" NOT NULL
);

CREATE TABLE nodes (
    id TEXT COLLATE "C" PRIMARY KEY,
    name TEXT COLLATE "C" UNIQUE,
    state TEXT COLLATE "C" NOT NULL,
    released BOOLEAN NOT NULL,
    claim_code TEXT COLLATE "C" UNIQUE,
    identity_json TEXT COLLATE "C" NOT NULL,
    inventory_json TEXT COLLATE "C",
    timing_json TEXT COLLATE "C",
    agent_version TEXT COLLATE "C",
    boot_id TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    enrolled_at BIGINT,
    -- The newest run. No foreign key, because runs point here.
    run TEXT COLLATE "C",
    network_json TEXT COLLATE "C",
    ssh_keys_json TEXT COLLATE "C" NOT NULL DEFAULT '[]',
    disk_json TEXT COLLATE "C",
    key_json TEXT COLLATE "C",
    armed BOOLEAN NOT NULL DEFAULT FALSE,
    key_left BOOLEAN NOT NULL DEFAULT FALSE,
    mac_only BOOLEAN NOT NULL DEFAULT FALSE,
    required TEXT COLLATE "C" NOT NULL DEFAULT 'registered',
    tpm_json TEXT COLLATE "C"
);

CREATE TABLE node_keys (
    kind TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    PRIMARY KEY (kind, value)
);
CREATE INDEX node_keys_node ON node_keys (node);

CREATE TABLE runs (
    id TEXT COLLATE "C" PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    state TEXT COLLATE "C" NOT NULL,
    -- The steps as handed to the node, and where each stands.
    workflow_json TEXT COLLATE "C" NOT NULL,
    steps_json TEXT COLLATE "C" NOT NULL,
    last_seq BIGINT NOT NULL,
    -- SHA-256 of the token in the phone-home URL; null when the installed system is not asked to report.
    phone_home_hash TEXT COLLATE "C" UNIQUE,
    phone_home_json TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    phoned_home_at BIGINT,
    ended BOOLEAN NOT NULL DEFAULT FALSE,
    last_contact_at BIGINT,
    required TEXT COLLATE "C" NOT NULL DEFAULT 'registered',
    event_bytes BIGINT NOT NULL DEFAULT 0,
    keep_metadata BOOLEAN NOT NULL DEFAULT FALSE,
    has_metadata_url BOOLEAN NOT NULL DEFAULT FALSE,
    forgotten BOOLEAN NOT NULL DEFAULT FALSE,
    restored BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX runs_node ON runs (node);

CREATE TABLE run_instances (
    instance_id TEXT COLLATE "C" PRIMARY KEY,
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE
);

CREATE TABLE events (
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq BIGINT NOT NULL,
    event_json TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, seq)
);

CREATE TABLE tokens (
    hash TEXT COLLATE "C" PRIMARY KEY,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    used_at BIGINT,
    used_by_address TEXT COLLATE "C",
    node TEXT COLLATE "C" REFERENCES nodes (id) ON DELETE SET NULL,
    made_for TEXT COLLATE "C" REFERENCES nodes (id) ON DELETE CASCADE
);

CREATE TABLE images (
    digest TEXT COLLATE "C" PRIMARY KEY,
    file_name TEXT COLLATE "C" NOT NULL,
    size BIGINT NOT NULL,
    raw_size BIGINT,
    raw_digest TEXT COLLATE "C",
    added_at BIGINT NOT NULL,
    captured BOOLEAN NOT NULL DEFAULT FALSE
);

CREATE TABLE systems (
    name TEXT COLLATE "C" PRIMARY KEY,
    system_json TEXT COLLATE "C" NOT NULL,
    added_at BIGINT NOT NULL
);

CREATE TABLE logs (
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    boot_id TEXT COLLATE "C" NOT NULL,
    -- Bytes of log since boot before this chunk.
    first_byte BIGINT NOT NULL,
    run TEXT COLLATE "C",
    -- Bytes, not text: a chunk may end within a character.
    data BYTEA NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (node, boot_id, first_byte)
);

CREATE TABLE recovery_keys (
    node TEXT COLLATE "C" NOT NULL,
    run TEXT COLLATE "C" NOT NULL,
    -- UUID of the LUKS2 volume.
    volume TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    stored_at BIGINT NOT NULL,
    -- When an operator last had it shown, if ever.
    shown_at BIGINT,
    key_hash TEXT COLLATE "C",
    PRIMARY KEY (node, volume)
);

CREATE TABLE run_tokens (
    hash TEXT COLLATE "C" PRIMARY KEY,
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    purpose TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX run_tokens_run ON run_tokens (run);

CREATE TABLE known_steps (
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, name)
);

CREATE TABLE loose_steps (
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    priority BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    -- All but the log, which is left out where many nodes are listed.
    step_json TEXT COLLATE "C" NOT NULL,
    logs TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, name)
);

CREATE TABLE boot_reports (
    run TEXT COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    status_json TEXT COLLATE "C" NOT NULL
);

CREATE TABLE host_logs (
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    kind TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    boot_id TEXT COLLATE "C" NOT NULL,
    run TEXT COLLATE "C" NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (node, kind, at)
);

CREATE TABLE node_key_changes (
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    key_json TEXT COLLATE "C" NOT NULL
);
CREATE INDEX node_key_changes_node ON node_key_changes (node);

CREATE TABLE claimants (
    key TEXT COLLATE "C" PRIMARY KEY,
    -- The id of the node that it becomes if an operator lets it in as a new one.
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    code TEXT COLLATE "C" NOT NULL UNIQUE,
    reason TEXT COLLATE "C" NOT NULL,
    -- The node that has identifiers of the machine.
    node TEXT COLLATE "C" REFERENCES nodes (id) ON DELETE SET NULL,
    address TEXT COLLATE "C" NOT NULL,
    -- The address, or the first 64 bits of it (IPv6), by which machines are counted.
    network TEXT COLLATE "C" NOT NULL,
    identity_json TEXT COLLATE "C" NOT NULL,
    -- What it sent when it asked last, for the record of the node that it may become.
    report_json TEXT COLLATE "C" NOT NULL,
    first_asked BIGINT NOT NULL,
    last_asked BIGINT NOT NULL
);
CREATE INDEX claimants_node ON claimants (node);

CREATE TABLE notes (
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    step BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    note TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (run, step, seq)
);

CREATE TABLE recipients (
    recipient TEXT COLLATE "C" PRIMARY KEY,
    added_at BIGINT NOT NULL
);

CREATE TABLE node_eks (
    ek TEXT COLLATE "C" PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE INDEX node_eks_node ON node_eks (node);

CREATE TABLE attestations (
    node TEXT COLLATE "C" PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    keys_json TEXT COLLATE "C" NOT NULL,
    proof_json TEXT COLLATE "C" NOT NULL
);

CREATE TABLE operators (
    name TEXT COLLATE "C" PRIMARY KEY,
    hash TEXT COLLATE "C" NOT NULL UNIQUE,
    -- When this token was made, and not the first of the name.
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    -- The day on which it was last used, by its first millisecond in UTC.
    used_at BIGINT,
    -- The token before it, and when that one ends or ended.
    old_hash TEXT COLLATE "C" UNIQUE,
    old_until BIGINT
);

CREATE TABLE ended_operator_tokens (
    hash TEXT COLLATE "C" PRIMARY KEY
);

CREATE TABLE boot_fetches (
    id TEXT COLLATE "C" PRIMARY KEY,
    at BIGINT NOT NULL,
    address TEXT COLLATE "C" NOT NULL,
    -- The address, or the first 64 bits of it (IPv6), by which fetches of strangers are counted.
    network TEXT COLLATE "C" NOT NULL,
    -- Path below the boot folder.
    file TEXT COLLATE "C" NOT NULL,
    bytes BIGINT NOT NULL,
    way TEXT COLLATE "C" NOT NULL,
    -- Whether it is a script that sends its machine to its disk, so that nothing more is expected of it.
    to_disk BOOLEAN NOT NULL,
    -- Empty if nobody knows whose machine it was.
    node TEXT COLLATE "C" REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE INDEX boot_fetches_node ON boot_fetches (node, at);
CREATE INDEX boot_fetches_address ON boot_fetches (address);

CREATE TABLE node_addresses (
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    address TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (node, address)
);
CREATE INDEX node_addresses_address ON node_addresses (address);

CREATE TABLE boot_builds (
    -- The id of the manifest.
    id TEXT COLLATE "C" PRIMARY KEY,
    at BIGINT NOT NULL,
    measurements_json TEXT COLLATE "C" NOT NULL
);

CREATE TABLE boot_programs (
    digest TEXT COLLATE "C" PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL
);

CREATE TABLE findings (
    digest TEXT COLLATE "C" PRIMARY KEY,
    finding_json TEXT COLLATE "C" NOT NULL
);

CREATE TABLE node_contacts (
    node TEXT COLLATE "C" PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL
);

CREATE TABLE node_changes (
    id BIGINT PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL
);
