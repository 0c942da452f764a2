-- expand: a table that older versions do not use.
--
-- Operators who are signed in to the page. A session is of the operator whose token has the hash, and ends with it.
CREATE TABLE sessions (
    -- SHA-256 of the cookie, in hexadecimal.
    hash TEXT PRIMARY KEY,
    -- SHA-256 of the operator's token, in hexadecimal.
    token_hash TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
