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

-- The last move of this store's content; at most one row. Writer: db.
CREATE TABLE store_moves (
    one {integer} PRIMARY KEY CHECK (one = 1),  -- always 1: the table has at most one row
    phase {key} NOT NULL                -- leaving: writes are blocked while it is copied; gone; arriving; arrived; excerpt: the export of a project
        CHECK (phase IN ('leaving', 'gone', 'arriving', 'arrived', 'excerpt')),
    url TEXT NOT NULL,                  -- the other store, without password
    move_id {key} NOT NULL,             -- id of the move, the same in both stores; empty: cancelled
    copied_rows {json} NOT NULL,        -- arriving: number of rows copied so far, by table
    started_at {integer} NOT NULL       -- when it began
) {strict};
