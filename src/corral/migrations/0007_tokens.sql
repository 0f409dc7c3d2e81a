-- Who may call the API, and what each may do. The secret itself is kept nowhere. Writer: tokens.
CREATE TABLE tokens (
    id {key} PRIMARY KEY,               -- tok_…
    name {key} NOT NULL,                -- what people call it; stands in the record as token:NAME
    state {key} NOT NULL                -- active, revoked
        CHECK (state IN ('active', 'revoked')),
    scope {key} NOT NULL,               -- full, read, or agent:ID for what one agent may do
    project_id {key},                   -- the one project that an agent's token is for; null: any
    hash {key} NOT NULL,                -- SHA-256 of the secret, which has 256 random bits
    created_at {integer} NOT NULL,      -- when it was made
    created_by {key} NOT NULL,          -- who made it
    expires_at {integer},               -- from when on it is refused; null: never
    used_at {integer},                  -- about when it was last used, to the minute
    ended_at {integer},                 -- when it was revoked
    CHECK ((state = 'active') = (ended_at IS NULL))
) {strict};

CREATE UNIQUE INDEX tokens_by_hash ON tokens (hash);
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE state = 'active';

-- What write calls with an Idempotency-Key were answered, so that a repeated call does nothing
-- twice. Writer: answers.
CREATE TABLE answers (
    id {key} PRIMARY KEY,               -- ans_…, in the order of arrival
    token_id {key} NOT NULL,            -- who called
    key {key} NOT NULL,                 -- what the caller named the call
    fingerprint {key} NOT NULL,         -- SHA-256 of what was asked for
    body {json},                        -- the answer; null: it was begun, and its outcome is not known
    created_at {integer} NOT NULL,      -- when it was begun
    UNIQUE (token_id, key)
) {strict};
