-- expand: indices that older versions ignore. GET /metrics counts nodes and runs by their states, without a look at the
-- rows, which are wide.
CREATE INDEX nodes_state ON nodes (state);
CREATE INDEX runs_state ON runs (state);
