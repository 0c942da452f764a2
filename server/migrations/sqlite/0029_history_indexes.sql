-- expand: indexes.
--
-- How many events there are of a node, apart from what operators did, and which node had a name.
CREATE INDEX history_of_nodes ON history (node) WHERE operator IS NULL;
CREATE INDEX history_name ON history (name, number) WHERE name IS NOT NULL;
