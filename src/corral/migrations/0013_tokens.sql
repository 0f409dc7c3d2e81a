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
