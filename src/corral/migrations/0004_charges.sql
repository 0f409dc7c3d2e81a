-- Tokens and money used by agents, one row a report. Writer: charges.
CREATE TABLE charges (
    seq {serial},                       -- order of arrival; the public id is chg_184
    run_id {key},                       -- the run that used them, if it was one
    session_id {key},                   -- the conversation, if known
    project_id {key},                   -- the project, if any
    agent_id {key},                     -- the agent, if any
    provider {key},                     -- whose program reported them
    model {key},                        -- as the provider names it
    input {integer} NOT NULL,           -- tokens read, without those from the cache
    output {integer} NOT NULL,          -- tokens written, reasoning included
    cache_read {integer} NOT NULL,      -- tokens that came from the cache
    cache_write {integer} NOT NULL,     -- tokens that were put into the cache
    reasoning {integer} NOT NULL,       -- the part of the output that was reasoning
    cost_micros {integer},              -- millionths of a dollar; null: not known
    source {key}                        -- who said so: the provider, or the table of prices
        CHECK (source IN ('provider', 'prices')),
    prices_version TEXT,                -- the table of prices that was asked last
    key {key},                          -- the same key in the same run (or session) is the same report
    at {integer} NOT NULL,              -- when they were used
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((cost_micros IS NULL) = (source IS NULL))
) {strict};

CREATE UNIQUE INDEX charges_once ON charges (coalesce(run_id, session_id, ''), key)
    WHERE key IS NOT NULL;
CREATE INDEX charges_by_run ON charges (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX charges_by_session ON charges (session_id, seq) WHERE session_id IS NOT NULL;
CREATE INDEX charges_by_project ON charges (project_id, seq) WHERE project_id IS NOT NULL;
CREATE INDEX charges_unpriced ON charges (seq)
    WHERE cost_micros IS NULL AND model IS NOT NULL AND prices_version IS NULL;
{charges_keep_newest};

-- What charges add up to, kept by whoever adds one. They outlive the charges. Writer: charges.
CREATE TABLE totals (
    scope {key} NOT NULL,               -- all, or run:, session:, project:, agent:, model: and an id or name
    day {key} NOT NULL,                 -- 2027-01-31 in UTC; empty: since ever
    charges {integer} NOT NULL,         -- how many there were
    unknown {integer} NOT NULL,         -- how many of them have no cost
    input {integer} NOT NULL,           -- sum of the charges' column of that name
    output {integer} NOT NULL,          -- sum
    cache_read {integer} NOT NULL,      -- sum
    cache_write {integer} NOT NULL,     -- sum
    reasoning {integer} NOT NULL,       -- sum
    cost_micros {integer} NOT NULL,     -- sum of the costs that are known
    updated_at {integer} NOT NULL,      -- when something was last added
    PRIMARY KEY (scope, day)
) {strict};

CREATE INDEX totals_by_day ON totals (day, scope) WHERE day > '';

-- Where cumulative reports stood last, so that the next one is charged by the difference. Writer: charges.
CREATE TABLE counters (
    name {key} PRIMARY KEY,             -- what the provider's reports are counted under
    input {integer} NOT NULL,           -- the figure that was reported last
    output {integer} NOT NULL,          -- the same
    cache_read {integer} NOT NULL,      -- the same
    cache_write {integer} NOT NULL,     -- the same
    reasoning {integer} NOT NULL,       -- the same
    cost_micros {integer},              -- the same; null: it was not told
    updated_at {integer} NOT NULL       -- when
) {strict};


-- What may be spent. Writer: charges.
CREATE TABLE budgets (
    scope {key} NOT NULL,               -- all, or run:, project:, agent: and an id
    period {key} NOT NULL               -- total: once and for all; day: anew each day, in UTC
        CHECK (period IN ('total', 'day')),
    limit_micros {integer} NOT NULL     -- millionths of a dollar
        CHECK (limit_micros >= 0),
    updated_at {integer} NOT NULL,      -- when it was last set
    updated_by TEXT NOT NULL,           -- by whom
    PRIMARY KEY (scope, period)
) {strict};

-- What runs that have not ended were promised out of a budget. Writer: charges.
CREATE TABLE reservations (
    run_id {key} NOT NULL,              -- the run
    scope {key} NOT NULL,               -- the budget's scope
    period {key} NOT NULL,              -- the budget's period
    day {key} NOT NULL,                 -- the day on which it counts; empty: always
    micros {integer} NOT NULL,          -- what the run may spend in all; what it has spent is not reserved any more
    PRIMARY KEY (run_id, scope, period)
) {strict};

CREATE INDEX reservations_by_scope ON reservations (scope, period, day);

-- Whom to tell of what. Writer: alerts.
CREATE TABLE alerts (
    id {key} PRIMARY KEY,               -- alr_…
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'removed')),
    kinds {json} NOT NULL,              -- what is told: crashed, failed, stuck, needs_input, budget, finished
    project_id {key},                   -- only what belongs to this project
    agent_id {key},                     -- only what belongs to this agent
    target_kind {key} NOT NULL          -- how it is told
        CHECK (target_kind IN ('webhook', 'command', 'desktop', 'mailbox')),
    target TEXT NOT NULL,               -- a URL or secret:NAME, a command line, a mailbox; empty for the desktop
    secret TEXT,                        -- the name of the secret that a webhook is signed with
    created_at {integer} NOT NULL,      -- when it was added
    created_by TEXT NOT NULL,           -- by whom
    ended_at {integer},                 -- when it was removed
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE INDEX alerts_active ON alerts (id) WHERE state = 'active';
