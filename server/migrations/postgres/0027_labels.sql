-- expand: columns that may be empty or have a default, which older versions ignore.
ALTER TABLE nodes ADD COLUMN site TEXT COLLATE "C";
ALTER TABLE nodes ADD COLUMN labels_json TEXT COLLATE "C" NOT NULL DEFAULT '{}';
-- The operating system that a run installs, and the digest of its image.
ALTER TABLE runs ADD COLUMN os TEXT COLLATE "C";
ALTER TABLE runs ADD COLUMN image TEXT COLLATE "C";
-- Whether a step began that destroys what was on a disk.
ALTER TABLE runs ADD COLUMN destroyed BOOLEAN NOT NULL DEFAULT FALSE;
