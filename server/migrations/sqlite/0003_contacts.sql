-- When the installed system reported last; when it did so first is phoned_home_at.
ALTER TABLE runs ADD COLUMN last_contact_at BIGINT;
UPDATE runs SET last_contact_at = phoned_home_at;
