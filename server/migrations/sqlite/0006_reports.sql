-- Tokens a run gave out for what is reported beside its workflow, by their SHA-256. `purpose` is what one is good for.
CREATE TABLE run_tokens (
    hash TEXT PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    purpose TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- How often it was used in the minute that began then.
    minute_at BIGINT NOT NULL DEFAULT 0,
    uses BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX run_tokens_run ON run_tokens (run);

-- Names of loose steps a run expects; none if it expects any.
CREATE TABLE known_steps (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    PRIMARY KEY (run, name)
);

CREATE TABLE loose_steps (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    priority BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    -- All but the log, which is left out where many nodes are listed.
    step_json TEXT NOT NULL,
    logs TEXT NOT NULL,
    PRIMARY KEY (run, name)
);

-- What the boot reporter of a run's system said.
CREATE TABLE boot_reports (
    run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    status_json TEXT NOT NULL
);

-- Logs of installed systems, each whole, compressed with gzip.
CREATE TABLE host_logs (
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    at BIGINT NOT NULL,
    boot_id TEXT NOT NULL,
    run TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (node, kind, at)
);
