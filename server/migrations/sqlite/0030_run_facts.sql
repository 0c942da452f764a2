-- expand: a table and an index that older versions do not use.
--
-- What is known of a run, to compare it with another one.
CREATE TABLE run_facts (
    run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    -- Settings of its steps, as names and values. What may be secret is a short digest.
    settings_json TEXT,
    -- The machine that fetched it.
    machine_json TEXT,
    vendor TEXT,
    model TEXT
);
CREATE INDEX run_facts_model ON run_facts (model, vendor);
