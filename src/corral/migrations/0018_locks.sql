-- Leases on paths of a project: held, waiting and ended. Writer: locks.
CREATE TABLE locks (
    seq {serial},                       -- number in lck_…: position in the wait queue, and fencing token
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('held', 'waiting', 'released', 'expired', 'withdrawn', 'revoked')),
    project_id {key} NOT NULL,          -- the project that contains the path
    path {key} NOT NULL,                -- locked path or pattern, relative to the project
    path_prefix {key} NOT NULL,         -- part of the path before the first wildcard
    mode {key} NOT NULL                 -- exclusive: one owner; shared: several owners, all of them shared
        CHECK (mode IN ('exclusive', 'shared')),
    owner {key} NOT NULL,               -- agent:…, user:…, session:… or run:…
    run_id {key},                       -- run whose heartbeats renew the lock and whose end releases it
    reason TEXT,                        -- purpose of the lock
    ttl_ms {integer} NOT NULL,          -- duration of the lease
    lease_until {integer} NOT NULL,     -- end of the lease; while waiting: end of the place in the queue
    notify {integer} NOT NULL,          -- 1: the owner gets a letter when the lock is granted
    created_at {integer} NOT NULL,      -- time of the request
    held_at {integer},                  -- time of the grant
    ended_at {integer},                 -- time of the end
    ended_by TEXT,                      -- actor that ended it
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state IN ('held', 'waiting')))
) {strict};

{locks_keep_newest};
CREATE INDEX locks_live ON locks (project_id, path_prefix, seq) WHERE ended_at IS NULL;
CREATE INDEX locks_waiting ON locks (project_id, seq) WHERE state = 'waiting';
CREATE INDEX locks_due ON locks (lease_until) WHERE ended_at IS NULL;
CREATE INDEX locks_of_owner ON locks (owner, seq) WHERE ended_at IS NULL;
CREATE INDEX locks_of_run ON locks (run_id) WHERE run_id IS NOT NULL AND ended_at IS NULL;
CREATE INDEX locks_by_project ON locks (project_id, seq);
CREATE INDEX locks_granted ON locks (project_id, held_at) WHERE held_at IS NOT NULL;

-- Changes to files, by owner. Writer: locks.
CREATE TABLE file_touches (
    seq {serial},                       -- order of the first change
    project_id {key} NOT NULL,          -- the project that contains the file
    path {key} NOT NULL,                -- the file, relative to the project
    owner {key} NOT NULL,               -- owner that changed the file, as in locks
    count {integer} NOT NULL,           -- number of changes
    first_at {integer} NOT NULL,        -- time of the first change
    last_at {integer} NOT NULL,         -- time of the last change
    imported_at {integer},              -- time of the import; null: not imported
    UNIQUE (project_id, path, owner)
) {strict};

CREATE INDEX file_touches_of_owner ON file_touches (project_id, owner, path);
