-- expand: a table that older versions do not use.
--
-- What a run was asked for, encrypted, so that it can be retried. It is kept until the run succeeded, another run of
-- its node was started, or the node went out of service.
CREATE TABLE run_requests (
    run TEXT COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    sealed BYTEA NOT NULL
);
