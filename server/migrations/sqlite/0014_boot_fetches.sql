-- Boot files that machines fetched from beginning to end.
CREATE TABLE boot_fetches (
    id TEXT PRIMARY KEY,
    at BIGINT NOT NULL,
    address TEXT NOT NULL,
    -- The address, or the first 64 bits of it (IPv6), by which fetches of strangers are counted.
    network TEXT NOT NULL,
    -- Path below the boot folder.
    file TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    way TEXT NOT NULL,
    -- Whether it is a script that sends its machine to its disk, so that nothing more is expected of it.
    to_disk BOOLEAN NOT NULL,
    -- Empty if nobody knows whose machine it was.
    node TEXT REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE INDEX boot_fetches_node ON boot_fetches (node, at);
CREATE INDEX boot_fetches_address ON boot_fetches (address);

-- The addresses at which nodes were lately, by which their fetches are told apart.
CREATE TABLE node_addresses (
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    address TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (node, address)
);
CREATE INDEX node_addresses_address ON node_addresses (address);
