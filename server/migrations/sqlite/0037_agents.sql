-- expand: tables that older versions do not use.
--
-- The agents of installed systems.
CREATE TABLE agents (
    node TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    -- The run that installed it.
    run TEXT NOT NULL,
    token_hash TEXT NOT NULL,
    -- A token that it was given and has not used yet.
    next_hash TEXT,
    -- When it was last given a token.
    issued_at BIGINT NOT NULL,
    -- Whether it has used a token of its own.
    is_used BOOLEAN NOT NULL,
    -- Whether an operator, or someone on the machine, removed it.
    removed BOOLEAN NOT NULL,
    status_json TEXT
);
CREATE INDEX agents_token ON agents (token_hash);
CREATE INDEX agents_next ON agents (next_hash) WHERE next_hash IS NOT NULL;
-- What agents are to do, and did.
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    asked_at BIGINT NOT NULL,
    -- The order of a node's tasks, the newest last.
    number BIGINT NOT NULL,
    task_json TEXT NOT NULL,
    output TEXT,
    UNIQUE (node, number)
);
-- Few are open, and servers look for them.
CREATE INDEX tasks_open ON tasks (state) WHERE state IN ('asked', 'running');
