-- Access tokens of the HTTP API; only the hashes of their secrets are stored. Writer: tokens.
CREATE TABLE tokens (
    id {key} PRIMARY KEY,               -- tok_…
    name {key} NOT NULL,                -- display name; the actor of its calls is token:NAME
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'revoked')),
    scope {key} NOT NULL,               -- full, read, or agent:ID
    project_id {key},                   -- the only project of an agent's token; null: any
    hash {key} NOT NULL,                -- SHA-256 of the secret, which has 256 random bits
    created_at {integer} NOT NULL,      -- time of creation
    created_by {key} NOT NULL,          -- actor that created it
    expires_at {integer},               -- time from which it is rejected; null: never
    used_at {integer},                  -- time of the last use, accurate to a minute
    ended_at {integer},                 -- time of the revocation
    CHECK ((state = 'active') = (ended_at IS NULL))
) {strict};

CREATE UNIQUE INDEX tokens_by_hash ON tokens (hash);
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE state = 'active';

-- Responses to write calls with an Idempotency-Key, so that a repeated call has no second effect.
-- Writer: idempotency.
CREATE TABLE idempotency_keys (
    id {key} PRIMARY KEY,               -- idk_…, in insertion order
    token_id {key} NOT NULL,            -- token of the caller
    key {key} NOT NULL,                 -- the Idempotency-Key
    fingerprint {key} NOT NULL,         -- SHA-256 of the request
    response {json},                    -- the response; null: the call was begun, its outcome is not known
    created_at {integer} NOT NULL,      -- start of the call
    UNIQUE (token_id, key)
) {strict};
