-- contract: programs before this one know neither the rule of these lines nor the servers beside them.
--
-- The servers that run on this database. Each writes its row again while it runs, and removes it when it stops. Times
-- are of the clock of this host.
CREATE TABLE servers (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    version TEXT NOT NULL,
    url TEXT NOT NULL,
    -- Public key of the site key that it uses. NULL if its keys are in its data folder alone.
    site_key TEXT,
    -- Number of the last migration that its program knows.
    known_schema BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    last_seen BIGINT NOT NULL
);

-- What only one process does at a time, and until when it does so if it does not say so again. By the same clock.
CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until BIGINT NOT NULL
);

-- PINs that a PKCS #11 token refused, by keyed digests, and when. No server tries one again unless its file was written
-- later, because the token would lock.
CREATE TABLE refused_pins (
    digest TEXT PRIMARY KEY,
    at BIGINT NOT NULL
);
