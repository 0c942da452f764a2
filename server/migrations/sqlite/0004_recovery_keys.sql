-- What opens the encrypted disks of nodes when their TPM does not. Neither node nor run is a reference: the key of a disk is needed
-- for as long as there is the disk.
CREATE TABLE recovery_keys (
    node TEXT NOT NULL,
    run TEXT NOT NULL,
    -- UUID of the LUKS2 volume.
    volume TEXT NOT NULL,
    key TEXT NOT NULL,
    stored_at BIGINT NOT NULL,
    -- When an operator last had it shown, if ever.
    shown_at BIGINT,
    PRIMARY KEY (node, volume)
);
