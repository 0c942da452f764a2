-- expand: tables and an index that older versions do not use, and columns that may be empty or have a default.
--
-- Trouble that was noticed and is not over.
CREATE TABLE flags (
    -- Id of the node, empty for the site.
    node TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    -- Name of the step, empty if it is about none.
    step TEXT COLLATE "C" NOT NULL,
    since BIGINT NOT NULL,
    flag_json TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (node, kind, step)
);

-- How long steps took that succeeded, and the bytes that they moved. The image is empty if the run installs none.
CREATE TABLE step_times (
    image TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    run TEXT COLLATE "C" NOT NULL,
    millis BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (image, action, at, run)
);

-- How often a machine began the run from its first step.
ALTER TABLE runs ADD COLUMN begins BIGINT NOT NULL DEFAULT 0;

-- Id of the bootstrap token in boot files.
ALTER TABLE boot_builds ADD COLUMN token TEXT COLLATE "C";

-- What is counted by the hour for each node.
CREATE INDEX history_often ON history (at) WHERE kind IN ('enrolled', 'key-changed', 'report-refused');
