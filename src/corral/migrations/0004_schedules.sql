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
