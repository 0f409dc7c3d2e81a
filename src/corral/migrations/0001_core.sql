-- The comment above a table or after a column is its documentation; docs/reference/schema.md is generated from it.

-- The migrations that were applied to this store. Writer: db.
CREATE TABLE migrations (
    number {integer} PRIMARY KEY,       -- from 1, without gaps
    name TEXT NOT NULL,                 -- name of the file
    checksum TEXT NOT NULL,             -- SHA-256 of the file
    applied_at {integer} NOT NULL       -- time of the migration
) {strict};

-- Options that the database engine reads at open; one row. Writer: db.
CREATE TABLE store_options (
    one {integer} PRIMARY KEY CHECK (one = 1),  -- always 1: the table has one row
    durability TEXT NOT NULL            -- full: commits survive a power failure; normal: commits survive a process crash
        CHECK (durability IN ('normal', 'full'))
) {strict};

INSERT INTO store_options (one, durability) VALUES (1, {durability});

{deferred_indexes};

-- Append-only log of all changes. Writer: every operation, in its own transaction.
-- On SQLite, read the events of one subject from the view `events_of_subject`: its index is filled
-- asynchronously, and the view adds the rows that are not indexed yet.
CREATE TABLE events (
    seq {serial},                       -- insertion order; the public id is evt_184
    {commit_order}
    at {integer} NOT NULL,              -- time of the transaction
    actor TEXT NOT NULL,                -- who made the change: user:NAME, agent:NAME, or a component of Corral
    kind {key} NOT NULL,                -- kind of the changed object: letter, project, schedule …
    verb {key} NOT NULL,                -- the change: put, ack, archive …
    subject {key} NOT NULL,             -- id of the changed object
    project_id {key},                   -- project of the changed object; null: none
    data {json},                        -- further details
    run_id {key},                       -- the run whose process made the change; null: not made by a run
    imported_at {integer}               -- time of the import; null: not imported
) {strict};

{feed_index};
{events_by_subject};
CREATE INDEX events_by_project ON events (project_id, {feed_key}) WHERE project_id IS NOT NULL;
{events_keep_newest};

-- Values that replace the defaults of settings. Writer: settings.
CREATE TABLE settings (
    scope {key} NOT NULL,               -- global, project:ID or agent:NAME
    name {key} NOT NULL,                -- name of the setting, such as mail.max_attempts
    value {json} NOT NULL,              -- value, of the type of the setting
    updated_at {integer} NOT NULL,      -- time of the last change
    updated_by TEXT NOT NULL,           -- actor of the last change
    PRIMARY KEY (scope, name)
) {strict};

-- References to secrets, never their values. Writer: settings.
CREATE TABLE secrets (
    name {key} PRIMARY KEY,             -- name of the secret
    reference TEXT NOT NULL,            -- env:NAME, file:PATH, cmd:COMMAND or keyring:SERVICE/NAME
    updated_at {integer} NOT NULL,      -- time of the last change
    updated_by TEXT NOT NULL            -- actor of the last change
) {strict};

-- Directories that agents work in. Writer: projects.
CREATE TABLE projects (
    id {key} PRIMARY KEY,               -- prj_…
    dir {key} NOT NULL UNIQUE,          -- absolute path: symlinks resolved, no trailing slash
    name TEXT NOT NULL,                 -- display name; default: the name of the directory
    command TEXT,                       -- default command of runs
    prompt TEXT,                        -- default prompt of runs
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'archived')),
    created_at {integer} NOT NULL,      -- time of the first registration
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

-- Schedules and timers: rules by which letters are put later, once or repeatedly. Writer: schedules.
CREATE TABLE schedules (
    id {key} PRIMARY KEY,               -- sch_…
    name TEXT,                          -- display name; null: none
    project_id {key},                   -- the project; null: none
    mailbox {key} NOT NULL,             -- the mailbox of its letters
    body {json} NOT NULL,               -- the body of its letters
    priority {integer} NOT NULL,        -- the priority of its letters
    kind {key} NOT NULL                 -- the kind of `rule`; once: a timer
        CHECK (kind IN ('once', 'every', 'cron')),
    rule TEXT NOT NULL,                 -- once: empty; every: milliseconds; cron: the five fields
    time_zone TEXT NOT NULL,            -- the time zone of a cron rule
    anchor_at {integer} NOT NULL,       -- start of the rule; once: the scheduled time itself
    misfire {key} NOT NULL              -- scheduled times that were missed: put all, the latest, or none
        CHECK (misfire IN ('all', 'latest', 'skip')),
    overlap {key} NOT NULL              -- while the previous letter is open: put another, skip, or replace it
        CHECK (overlap IN ('allow', 'skip', 'replace')),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'paused', 'finished', 'cancelled')),
    next_at {integer},                  -- the next scheduled time; null: none
    last_at {integer},                  -- the scheduled time of the last letter; null: none yet
    last_letter_id {integer},           -- the number of that letter; null: none yet
    last_error TEXT,                    -- why it was paused automatically, or why its script failed
    script TEXT,                        -- command that runs first and decides whether a letter is put; null: none
    script_timeout_ms {integer},        -- timeout of the script; null: the setting schedules.script_timeout_ms
    failures {integer} NOT NULL         -- consecutive occurrences whose script failed in every attempt
        DEFAULT 0,
    sender {key},                       -- the mailbox that is notified if a letter is not delivered; null: none
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time when it finished or was cancelled; null: open
    imported_at {integer},              -- time of the import; null: not imported
    correlation_id {key},               -- the letter chain that its letters continue; null: created by a person
    hops {integer},                     -- length of that chain; null: created by a person
    CHECK (state <> 'active' OR next_at IS NOT NULL),
    CHECK ((ended_at IS NULL) = (state IN ('active', 'paused')))
) {strict};

CREATE INDEX schedules_due ON schedules (next_at, id) WHERE state = 'active';
CREATE INDEX schedules_open ON schedules (id) WHERE state IN ('active', 'paused');
CREATE INDEX schedules_by_mailbox ON schedules (mailbox, kind) WHERE state IN ('active', 'paused');
CREATE INDEX schedules_by_project ON schedules (project_id) WHERE project_id IS NOT NULL;

-- Occurrences: each time that a schedule fired, and its outcome. Only for schedules with a script or
-- with a session as mailbox. Writer: schedules.
CREATE TABLE occurrences (
    id {key} PRIMARY KEY,               -- occ_…
    schedule_id {key} NOT NULL,         -- the schedule
    project_id {key},                   -- the project of the schedule; null: none
    scheduled_at {integer},             -- the scheduled time; null: run by hand
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('checking', 'put', 'skipped', 'failed')),
    attempts {integer} NOT NULL,        -- runs of the script
    exit_code {integer},                -- exit code of its last run; null: not known
    output TEXT,                        -- end of its last output, redacted
    reason TEXT,                        -- why it was skipped or failed
    letter_id {integer},                -- the number of the letter that was put; null: none
    run_id {key},                       -- the run that received the letter; null: none
    created_at {integer} NOT NULL,      -- time when the schedule fired
    ended_at {integer},                 -- time when it was put, skipped or failed; null: open
    UNIQUE (schedule_id, scheduled_at),
    CHECK ((ended_at IS NULL) = (state = 'checking'))
) {strict};

CREATE INDEX occurrences_by_schedule ON occurrences (schedule_id, id);
CREATE INDEX occurrences_by_letter ON occurrences (letter_id) WHERE letter_id IS NOT NULL;
