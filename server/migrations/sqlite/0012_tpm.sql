-- The TPM that a node is known by.
ALTER TABLE nodes ADD COLUMN tpm_json TEXT;

-- The nodes by the endorsement keys of their TPMs. No two nodes have one.
CREATE TABLE node_eks (
    ek TEXT PRIMARY KEY,
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE INDEX node_eks_node ON node_eks (node);

-- What the machine of a node last proved with its TPM: keys, quote and event log, as it sent them.
CREATE TABLE attestations (
    node TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    keys_json TEXT NOT NULL,
    proof_json TEXT NOT NULL
);
