-- Operators of the HTTPS API. Without a row, nobody is let in. Tokens are stored as SHA-256.
CREATE TABLE operators (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    -- When this token was made, and not the first of the name.
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    -- The day on which it was last used, by its first millisecond in UTC.
    used_at BIGINT,
    -- The token before it, and when that one ends or ended.
    old_hash TEXT UNIQUE,
    old_until BIGINT
);

-- Tokens that were replaced or removed, as SHA-256, so that none of them works again when it is found in a file.
CREATE TABLE ended_operator_tokens (hash TEXT PRIMARY KEY);
