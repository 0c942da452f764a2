-- expand: a table that older versions do not use, because they know no bucket.
--
-- Parts of disk images that runs are uploading to a bucket, by the offset behind them. The row with the offset 0 has no
-- object and stands for the begin of the upload.
CREATE TABLE capture_parts (
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    until BIGINT NOT NULL,
    object TEXT COLLATE "C" NOT NULL,
    stored_at BIGINT NOT NULL,
    PRIMARY KEY (run, name, until)
);
