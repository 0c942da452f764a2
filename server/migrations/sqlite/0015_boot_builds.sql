-- What the boot files of each build leave in the registers of a TPM. Builds stay when their files are removed.
CREATE TABLE boot_builds (
    -- The id of the manifest.
    id TEXT PRIMARY KEY,
    at BIGINT NOT NULL,
    measurements_json TEXT NOT NULL
);

-- Programs that may start before the boot files, by their Authenticode digests.
CREATE TABLE boot_programs (
    digest TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    at BIGINT NOT NULL
);

-- A site that has nodes already goes on without the comparison until an operator asks for it: no builds are recorded yet.
INSERT INTO settings (name, value) SELECT 'attested-boot', 'any' WHERE EXISTS (SELECT 1 FROM nodes);
