-- Whether the metadata of a run can be read after its system reported.
ALTER TABLE runs ADD COLUMN keep_metadata BOOLEAN NOT NULL DEFAULT FALSE;
-- Whether somebody has the URL of the metadata. Of older runs that is not known.
ALTER TABLE runs ADD COLUMN has_metadata_url BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE runs SET has_metadata_url = TRUE;
-- Whether the secrets in the workflow were replaced.
ALTER TABLE runs ADD COLUMN forgotten BOOLEAN NOT NULL DEFAULT FALSE;

-- Public keys of operators. Recovery keys are encrypted to them.
CREATE TABLE recipients (
    recipient TEXT PRIMARY KEY,
    added_at BIGINT NOT NULL
);

-- SHA-256 of a key that was encrypted, to tell whether another one is the same. Keys have 256 random bits.
ALTER TABLE recovery_keys ADD COLUMN key_hash TEXT;

-- Whether a node captured the image from a disk. Of older images, the workflows tell.
ALTER TABLE images ADD COLUMN captured BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE images SET captured = TRUE WHERE EXISTS (
    SELECT 1 FROM runs WHERE workflow_json LIKE '%"capture-disk"%"name":"' || file_name || '"%');
