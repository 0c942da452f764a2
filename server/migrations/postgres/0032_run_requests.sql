-- expand: a table that older versions do not use.
--
-- What a run was asked for, encrypted, so that it can be retried. It is kept until the run succeeded, or another run of
-- its node was started.
CREATE TABLE run_requests (
    run TEXT COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    sealed BYTEA NOT NULL
);
