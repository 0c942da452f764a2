-- Nodes that were stored, in order. Each server process reads the entries that it does not know yet, and wakes the
-- requests that wait for these nodes.
CREATE TABLE node_changes (
    id BIGINT PRIMARY KEY,
    node TEXT NOT NULL
);
