-- expand: columns that may be empty or have a default, which older versions ignore.
ALTER TABLE nodes ADD COLUMN site TEXT;
ALTER TABLE nodes ADD COLUMN labels_json TEXT NOT NULL DEFAULT '{}';
-- The operating system that a run installs, and the digest of its image.
ALTER TABLE runs ADD COLUMN os TEXT;
ALTER TABLE runs ADD COLUMN image TEXT;
-- Whether a step began that destroys what was on a disk.
ALTER TABLE runs ADD COLUMN destroyed BOOLEAN NOT NULL DEFAULT FALSE;
