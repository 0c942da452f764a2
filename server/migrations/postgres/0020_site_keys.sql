-- The files of keys that all servers of the site use, together and encrypted to the site key. NULL if each server has
-- them in its data folder. There is one row at most. Servers look at its revision, and take changed keys over.
CREATE TABLE site_keys (
    id BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL,
    sealed BYTEA
);
