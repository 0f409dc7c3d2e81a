-- Letters: queued messages, each for one mailbox, until they are acknowledged. Writer: mail.
-- On SQLite, query the view `letters_of_mailbox` for all letters of one mailbox, as with events.
CREATE TABLE letters (
    seq {serial},                       -- order of arrival; the public id is let_184
    mailbox {key} NOT NULL,             -- agent:, session:, place:, hook: and user: are ordered; queue: is not
    sender TEXT,                        -- the mailbox that is notified if the letter is not delivered; null: none
    project_id {key},                   -- the project; null: none
    key {key},                          -- idempotency key, unique in the mailbox; null: none
    body {json} NOT NULL,               -- any JSON value
    rank {integer} NOT NULL,            -- the negated priority: the lowest rank is claimed first
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('waiting', 'unconfirmed', 'done', 'dead', 'refused', 'expired')),
    due_at {integer} NOT NULL,          -- earliest time of the next claim; end of the lease while claimed
    queue_at {integer} NOT NULL,        -- queue position within a rank; in a queue: mailbox it follows due_at
    expires_at {integer},               -- not delivered after this time; null: no limit
    owner TEXT,                         -- the current or last claimant; null: not claimed since the last failure
    fence {integer} NOT NULL DEFAULT 0, -- fencing token, incremented by every claim
    attempts {integer} NOT NULL DEFAULT 0,  -- claims since it was put or re-sent
    last_error TEXT,                    -- why the last attempt failed, or why the letter ended
    created_at {integer} NOT NULL,      -- time of the put
    ended_at {integer},                 -- time of done, dead, refused or expired; null: open
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state IN ('waiting', 'unconfirmed')))
) {strict};

CREATE UNIQUE INDEX letters_by_key ON letters (mailbox, key) WHERE key IS NOT NULL;
{letters_by_mailbox};
CREATE INDEX letters_queue ON letters (mailbox, rank, queue_at, seq) WHERE state = 'waiting';
CREATE INDEX letters_started ON letters (mailbox, due_at)
    WHERE state IN ('waiting', 'unconfirmed') AND attempts > 0
      AND substr(mailbox, 1, 6) <> 'queue:';
CREATE INDEX letters_by_state ON letters (state, seq)
    WHERE state IN ('unconfirmed', 'dead', 'refused', 'expired');
CREATE INDEX letters_expiring ON letters (expires_at)
    WHERE state = 'waiting' AND expires_at IS NOT NULL;
{letters_keep_newest};

-- Letters between agents: the chain that each belongs to, and its reply address. Writer: mail.
CREATE TABLE letter_chains (
    letter_id {key} PRIMARY KEY,        -- the letter: let_7
    correlation_id {key} NOT NULL,      -- id of the chain, shared by a letter, its replies and the letters that they cause
    hops {integer} NOT NULL,            -- position in the chain, from 1
    in_reply_to {key},                  -- the letter that it replies to; null: not a reply
    agent_id {key} NOT NULL,            -- the agent that wrote it
    reply_to {key} NOT NULL,            -- the mailbox for replies; empty: none expected
    read_by {key},                      -- the run that last read it; null: none
    created_at {integer} NOT NULL       -- time of the put
) {strict};

CREATE INDEX letter_chains_read_by ON letter_chains (read_by) WHERE read_by IS NOT NULL;
