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
