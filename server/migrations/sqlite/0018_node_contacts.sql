-- When a node was last heard from. In a table of its own, because it changes far more often than the rest of a node.
CREATE TABLE node_contacts (
    node TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL
);
INSERT INTO node_contacts (node, at) SELECT id, last_seen FROM nodes WHERE last_seen IS NOT NULL;
ALTER TABLE nodes DROP COLUMN last_seen;
