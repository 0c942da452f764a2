-- Notes of steps. They were in runs.steps_json, which is written with every event; those of older runs still are.
CREATE TABLE notes (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    step BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (run, step, seq)
);

-- Bytes of the run's rows in events.
ALTER TABLE runs ADD COLUMN event_bytes BIGINT NOT NULL DEFAULT 0;
