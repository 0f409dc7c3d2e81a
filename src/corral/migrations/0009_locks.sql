-- Leases on paths, from asked for to their end. Writer: locks.
CREATE TABLE locks (
    seq {serial},                       -- the number in lck_…: place in line and fence
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('held', 'waiting', 'released', 'expired', 'withdrawn', 'revoked')),
    project_id {key} NOT NULL,          -- the project whose path it is
    path {key} NOT NULL,                -- what is locked: a path or pattern, relative to the project
    head {key} NOT NULL,                -- the parts of it before the first wildcard
    mode {key} NOT NULL                 -- with nobody else, or with others who hold it shared
        CHECK (mode IN ('exclusive', 'shared')),
    owner {key} NOT NULL,               -- agent:…, user:…, session:… or run:…
    run_id {key},                       -- the run that renews it, and with which it ends
    reason TEXT,                        -- what it is for
    ttl_ms {integer} NOT NULL,          -- how long it is held without being renewed
    lease_until {integer} NOT NULL,     -- held, or in line, until then
    tells {integer} NOT NULL,           -- 1: its owner gets a letter when it is granted
    created_at {integer} NOT NULL,      -- when it was asked for
    held_at {integer},                  -- when it was granted
    ended_at {integer},                 -- when it reached its end
    ended_by TEXT,                      -- who ended it
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state IN ('held', 'waiting')))
) {strict};

{locks_keep_newest};
CREATE INDEX locks_live ON locks (project_id, head, seq) WHERE ended_at IS NULL;
CREATE INDEX locks_waiting ON locks (project_id, seq) WHERE state = 'waiting';
CREATE INDEX locks_due ON locks (lease_until) WHERE ended_at IS NULL;
CREATE INDEX locks_of_owner ON locks (owner, seq) WHERE ended_at IS NULL;
CREATE INDEX locks_of_run ON locks (run_id) WHERE run_id IS NOT NULL AND ended_at IS NULL;
CREATE INDEX locks_by_project ON locks (project_id, seq);
CREATE INDEX locks_granted ON locks (project_id, held_at) WHERE held_at IS NOT NULL;

-- Who changed which file. Writer: locks.
CREATE TABLE touches (
    seq {serial},                       -- order of the first touch
    project_id {key} NOT NULL,          -- the project
    path {key} NOT NULL,                -- the file, relative to the project
    owner {key} NOT NULL,               -- who changed it, as in locks
    count {integer} NOT NULL,           -- how often
    first_at {integer} NOT NULL,        -- when it was first changed
    last_at {integer} NOT NULL,         -- when it was last changed
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    UNIQUE (project_id, path, owner)
) {strict};

CREATE INDEX touches_of_owner ON touches (project_id, owner, path);
