-- expand: a table that older versions do not use.
--
-- What happened at the site, in order. A removed node's rows stay.
CREATE TABLE history (
    number BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    -- Id of the node, and the name that it had then.
    node TEXT COLLATE "C",
    name TEXT COLLATE "C",
    run TEXT COLLATE "C",
    -- Name of the step of the run.
    step TEXT COLLATE "C",
    -- Who did it, if an operator did.
    operator TEXT COLLATE "C",
    message TEXT COLLATE "C" NOT NULL,
    -- What was reported, for reports of which only the newest is kept elsewhere.
    report_json TEXT COLLATE "C"
);
CREATE INDEX history_node ON history (node, number);
CREATE INDEX history_at ON history (at);
