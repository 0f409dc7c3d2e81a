-- The comment above a table and behind a column is its documentation: docs/reference/schema.md is made of them.

-- Which migrations this store has seen. Writer: db.
CREATE TABLE migrations (
    number {integer} PRIMARY KEY,       -- in order, without gaps
    name TEXT NOT NULL,                 -- the file's name
    checksum TEXT NOT NULL,             -- SHA-256 of the file
    applied_at {integer} NOT NULL       -- when
) {strict};

-- What the engine must know of this store; one row. Writer: db.
CREATE TABLE store (
    one {integer} PRIMARY KEY CHECK (one = 1),  -- there is only one
    durability TEXT NOT NULL            -- full: a commit survives a power cut; normal: any process's death
        CHECK (durability IN ('normal', 'full'))
) {strict};

INSERT INTO store (one, durability) VALUES (1, {durability});

{filed};

-- The append-only record of all changes. Writer: every operation, in its own transaction.
-- On SQLite, ask the view `events_of_subject` for the events of one subject: the index that serves
-- it is filled behind the writer, and the view also reads what is not in it yet.
CREATE TABLE events (
    seq {serial},                       -- order of arrival; the public id is evt_184
    {commit_order}
    at {integer} NOT NULL,              -- the `now` of the transaction that made the change
    actor TEXT NOT NULL,                -- who did it: user:…, agent:…, or a part of Corral
    kind {key} NOT NULL,                -- what was changed: letter, project, schedule …
    verb {key} NOT NULL,                -- what was done: put, ack, archive …
    subject {key} NOT NULL,             -- the id of the thing that was changed
    project_id {key},                   -- the project that it belongs to, if any
    data {json},                        -- what else the reader of the record may want
    run_id {key},                       -- the run whose process made the change; null: made outside of runs
    imported_at {integer}               -- when another tool's row was imported; null: created by Corral
) {strict};

{feed_index};
{events_by_subject};
CREATE INDEX events_by_project ON events (project_id, {feed_key}) WHERE project_id IS NOT NULL;
{events_keep_newest};

-- Values that people chose instead of the built-in defaults. Writer: settings.
CREATE TABLE settings (
    scope {key} NOT NULL,               -- global, project:<id> or agent:<name>
    name {key} NOT NULL,                -- a known setting's name, as in mail.max_attempts
    value {json} NOT NULL,              -- of the type that the setting has
    updated_at {integer} NOT NULL,      -- when it was last set
    updated_by TEXT NOT NULL,           -- by whom
    PRIMARY KEY (scope, name)
) {strict};

-- Where to find secrets; never the secrets themselves. Writer: settings.
CREATE TABLE secrets (
    name {key} PRIMARY KEY,             -- what others call it
    reference TEXT NOT NULL,            -- env:NAME, file:PATH, cmd:COMMAND or keyring:SERVICE/NAME
    updated_at {integer} NOT NULL,      -- when it was last set
    updated_by TEXT NOT NULL            -- by whom
) {strict};

-- Directories that agents work in. Writer: projects.
CREATE TABLE projects (
    id {key} PRIMARY KEY,               -- prj_…
    dir {key} NOT NULL UNIQUE,          -- the real path: symlinks resolved, no slash at the end
    name TEXT NOT NULL,                 -- for people; at first the directory's own name
    command TEXT,                       -- what is run here unless said otherwise
    prompt TEXT,                        -- what it is told unless said otherwise
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'archived')),
    created_at {integer} NOT NULL,      -- first registration
    updated_at {integer} NOT NULL,      -- last change of name, command, prompt or state
    last_run_at {integer}               -- start of the latest run; null: never run
) {strict};

CREATE INDEX projects_by_name ON projects (name);
CREATE INDEX projects_recent ON projects (coalesce(last_run_at, 0), id);

-- Machines that run agents for this store: one row per boot of a host. Writer: nodes.
CREATE TABLE nodes (
    id {key} PRIMARY KEY,               -- nod_…
    name {key} NOT NULL,                -- host name
    boot_id {key} NOT NULL,             -- identifies one boot of the host
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('up', 'left', 'lost')),
    owner TEXT,                         -- the daemon that holds the lease
    fence {integer} NOT NULL,           -- fencing token; incremented each time a daemon joins as this node
    lease_until {integer} NOT NULL,     -- end of the daemon's lease; the node is lost afterwards
    slots {integer} NOT NULL            -- maximum number of concurrent runs
        CHECK (slots >= 0),
    labels {json} NOT NULL,             -- labels for the placement of runs
    joined_at {integer} NOT NULL,       -- first join
    seen_at {integer} NOT NULL,         -- last heartbeat
    UNIQUE (name, boot_id)
) {strict};

CREATE INDEX nodes_up ON nodes (lease_until) WHERE state = 'up';

-- Leader of each daemon loop: a lease by name. Writer: nodes.
CREATE TABLE leaders (
    name {key} PRIMARY KEY,             -- name of the loop
    owner TEXT NOT NULL,                -- the current or last leader
    fence {integer} NOT NULL,           -- fencing token; incremented when the leader changes
    lease_until {integer} NOT NULL      -- end of the leader's lease
) {strict};

-- Messages on their way to one mailbox, until they are acknowledged. Writer: mail.
-- On SQLite, ask the view `letters_of_mailbox` for all letters of one mailbox, as with events.
CREATE TABLE letters (
    seq {serial},                       -- order of arrival; the public id is let_184
    mailbox {key} NOT NULL,             -- agent:, session:, place:, hook:, user: keep order; queue: does not
    sender TEXT,                        -- the mailbox that is told when the letter dies
    project_id {key},                   -- the project that it belongs to, if any
    key {key},                          -- the same key in the same mailbox is the same letter
    body {json} NOT NULL,               -- any JSON value
    rank {integer} NOT NULL,            -- minus the priority: the smaller goes first
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('waiting', 'unknown', 'done', 'dead', 'refused', 'expired')),
    due_at {integer} NOT NULL,          -- not to be claimed before; while it is out, the end of the lease
    line_at {integer} NOT NULL,         -- its place in line; where order does not matter it moves with due_at
    expires_at {integer},               -- not to be delivered after
    owner TEXT,                         -- who has it out, or had it last
    fence {integer} NOT NULL DEFAULT 0, -- raised at every claim
    attempts {integer} NOT NULL DEFAULT 0,  -- claims since it was put or re-sent
    last_error TEXT,                    -- why the last attempt failed, or why it ended as it did
    created_at {integer} NOT NULL,      -- when it was put
    ended_at {integer},                 -- when it reached done, dead, refused or expired
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state IN ('waiting', 'unknown')))
) {strict};

CREATE UNIQUE INDEX letters_by_key ON letters (mailbox, key) WHERE key IS NOT NULL;
{letters_by_mailbox};
CREATE INDEX letters_line ON letters (mailbox, rank, line_at, seq) WHERE state = 'waiting';
CREATE INDEX letters_started ON letters (mailbox, due_at)
    WHERE state IN ('waiting', 'unknown') AND attempts > 0 AND substr(mailbox, 1, 6) <> 'queue:';
CREATE INDEX letters_by_state ON letters (state, seq)
    WHERE state IN ('unknown', 'dead', 'refused', 'expired');
CREATE INDEX letters_expiring ON letters (expires_at)
    WHERE state = 'waiting' AND expires_at IS NOT NULL;
{letters_keep_newest};

-- Letters to be put later, once or again and again. Writer: schedules.
CREATE TABLE schedules (
    id {key} PRIMARY KEY,               -- sch_…
    name TEXT,                          -- for people
    project_id {key},                   -- the project that it belongs to, if any
    mailbox {key} NOT NULL,             -- where its letters go
    body {json} NOT NULL,               -- what they say
    priority {integer} NOT NULL,        -- theirs
    kind {key} NOT NULL                 -- how `rule` is read
        CHECK (kind IN ('once', 'every', 'cron')),
    rule TEXT NOT NULL,                 -- once: empty; every: milliseconds; cron: the five fields
    time_zone TEXT NOT NULL,            -- in which a cron rule is meant
    anchor_at {integer} NOT NULL,       -- moments are counted from here: once, the moment itself
    misfire {key} NOT NULL              -- moments missed while nobody looked: put all, the latest, none
        CHECK (misfire IN ('all', 'latest', 'skip')),
    overlap {key} NOT NULL              -- while its last letter is still open
        CHECK (overlap IN ('allow', 'skip', 'replace')),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'paused', 'finished', 'cancelled')),
    next_at {integer},                  -- the moment that comes next; null when none does
    last_at {integer},                  -- the moment that was last put
    last_letter {integer},              -- the letter of that moment
    last_error TEXT,                    -- why it was paused by itself, or why its script failed
    script TEXT,                        -- a command that is run first, and says whether a letter is put
    script_ms {integer},                -- for how long it may run; null: as the settings say
    failures {integer} NOT NULL         -- moments in a row whose script failed for good
        DEFAULT 0,
    sender {key},                       -- the mailbox that is told should a letter never arrive
    created_at {integer} NOT NULL,      -- when it was made
    ended_at {integer},                 -- when it was finished or cancelled
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    correlation_id {key},               -- the letter chain that its letters continue; null: made by a person
    hops {integer},                     -- letters of agents that led to the run that created or changed it; null: made by a person
    CHECK (state <> 'active' OR next_at IS NOT NULL),
    CHECK ((ended_at IS NULL) = (state IN ('active', 'paused')))
) {strict};

CREATE INDEX schedules_due ON schedules (next_at, id) WHERE state = 'active';
CREATE INDEX schedules_open ON schedules (id) WHERE state IN ('active', 'paused');
CREATE INDEX schedules_by_mailbox ON schedules (mailbox, kind) WHERE state IN ('active', 'paused');
CREATE INDEX schedules_by_project ON schedules (project_id) WHERE project_id IS NOT NULL;

-- What became of the moments of schedules that have a script, or give a session something to do.
-- Writer: schedules.
CREATE TABLE occurrences (
    id {key} PRIMARY KEY,               -- occ_…
    schedule_id {key} NOT NULL,         -- its schedule
    project_id {key},                   -- the schedule's project, if any
    moment {integer},                   -- the moment; null: somebody ran it by hand
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('checking', 'put', 'skipped', 'failed')),
    tries {integer} NOT NULL,           -- how often its script was run
    exit_code {integer},                -- what that ended with, the last time
    output TEXT,                        -- the last that it printed, without secrets
    reason TEXT,                        -- why it was skipped, or failed
    letter {integer},                   -- the number of the letter that was put
    run_id {key},                       -- the last run that was given it
    created_at {integer} NOT NULL,      -- when its moment was seen
    ended_at {integer},                 -- when it was put, skipped or given up
    UNIQUE (schedule_id, moment),
    CHECK ((ended_at IS NULL) = (state = 'checking'))
) {strict};

CREATE INDEX occurrences_by_schedule ON occurrences (schedule_id, id);
CREATE INDEX occurrences_by_letter ON occurrences (letter) WHERE letter IS NOT NULL;
