-- Tokens and money used by agents, one row per usage report. Writer: charges.
CREATE TABLE charges (
    seq {serial},                       -- order of insertion; the public id is chg_184
    run_id {key},                       -- the run; null: not from a run
    session_id {key},                   -- the session, if known
    project_id {key},                   -- the project, if any
    agent_id {key},                     -- the agent, if any
    provider {key},                     -- the agent CLI that reported the usage
    model {key},                        -- model, as the provider names it
    input {integer} NOT NULL,           -- input tokens, without cached ones
    output {integer} NOT NULL,          -- output tokens, including reasoning
    cache_read {integer} NOT NULL,      -- tokens read from the cache
    cache_write {integer} NOT NULL,     -- tokens written to the cache
    reasoning {integer} NOT NULL,       -- the part of the output that is reasoning
    cost_micros {integer},              -- millionths of a dollar; null: unknown
    source {key}                        -- origin of the cost: the provider's report, or the price table
        CHECK (source IN ('provider', 'prices')),
    prices_version TEXT,                -- version of the price table that was tried last
    key {key},                          -- idempotency key, unique within the run or session
    at {integer} NOT NULL,              -- time of the usage
    imported_at {integer},              -- time of the import; null: not imported
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

-- Sums of charges, updated in the transaction that adds a charge. They are kept longer than the
-- charges. Writer: charges.
CREATE TABLE usage_totals (
    scope {key} NOT NULL,               -- all, or run:, session:, project:, agent:, model: and an id or name
    day {key} NOT NULL,                 -- 2027-01-31 in UTC; empty: over all time
    charges {integer} NOT NULL,         -- number of charges
    unpriced {integer} NOT NULL,        -- number of charges without a cost
    input {integer} NOT NULL,           -- sum of the charges' column of the same name
    output {integer} NOT NULL,          -- sum
    cache_read {integer} NOT NULL,      -- sum
    cache_write {integer} NOT NULL,     -- sum
    reasoning {integer} NOT NULL,       -- sum
    cost_micros {integer} NOT NULL,     -- sum of the known costs
    updated_at {integer} NOT NULL,      -- last update
    PRIMARY KEY (scope, day)
) {strict};

CREATE INDEX usage_totals_by_day ON usage_totals (day, scope) WHERE day > '';

-- Last cumulative report of each counter; the next report is charged by the difference. Writer: charges.
CREATE TABLE usage_counters (
    name {key} PRIMARY KEY,             -- name of the provider's counter
    input {integer} NOT NULL,           -- last reported value
    output {integer} NOT NULL,          -- last reported value
    cache_read {integer} NOT NULL,      -- last reported value
    cache_write {integer} NOT NULL,     -- last reported value
    reasoning {integer} NOT NULL,       -- last reported value
    cost_micros {integer},              -- last reported value; null: not reported
    updated_at {integer} NOT NULL       -- time of the last report
) {strict};

-- Spending limits. Writer: charges.
CREATE TABLE budgets (
    scope {key} NOT NULL,               -- all, or run:, project:, agent: and an id
    period {key} NOT NULL               -- total: over all time; day: per day, in UTC
        CHECK (period IN ('total', 'day')),
    limit_micros {integer} NOT NULL     -- millionths of a dollar
        CHECK (limit_micros >= 0),
    updated_at {integer} NOT NULL,      -- last change
    updated_by TEXT NOT NULL,           -- actor of the last change
    PRIMARY KEY (scope, period)
) {strict};

-- Parts of a budget that are reserved for live runs. Writer: charges.
CREATE TABLE budget_reservations (
    run_id {key} NOT NULL,              -- the run
    scope {key} NOT NULL,               -- scope of the budget
    period {key} NOT NULL,              -- period of the budget
    day {key} NOT NULL,                 -- the day for which it is reserved; empty: over all time
    amount_micros {integer} NOT NULL,   -- spending limit of the run; what it has spent is subtracted when budgets are checked
    PRIMARY KEY (run_id, scope, period)
) {strict};

CREATE INDEX budget_reservations_by_scope ON budget_reservations (scope, period, day);
