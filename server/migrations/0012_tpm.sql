-- The TPM that a node is known by.
ALTER TABLE nodes ADD COLUMN tpm_json TEXT;

-- What the machine of a node last proved with its TPM: keys, quote and event log, as it sent them.
CREATE TABLE attestations (
    node TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    keys_json TEXT NOT NULL,
    proof_json TEXT NOT NULL
);
