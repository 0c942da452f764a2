-- expand
-- Nodes and runs are counted by their states for GET /metrics, without a look at the rows, which are wide.
CREATE INDEX nodes_state ON nodes (state);
CREATE INDEX runs_state ON runs (state);
