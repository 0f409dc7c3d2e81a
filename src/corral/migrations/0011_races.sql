-- Several attempts at one piece of work, round by round. Writer: races.
CREATE TABLE races (
    id {key} PRIMARY KEY,               -- rac_…
    project_id {key} NOT NULL,          -- the project that it is run in
    name TEXT NOT NULL,                 -- what it is about, in a line
    prompt TEXT NOT NULL,               -- what was asked at its start
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'completed', 'abandoned')),
    repository TEXT NOT NULL,           -- the git repository that its worktrees belong to
    inside TEXT NOT NULL,               -- the project's directory, from that repository's top
    private {integer} NOT NULL          -- 1: the repository is Corral's own; the directory has none
        CHECK (private IN (0, 1)),
    branch TEXT,                        -- the branch that was checked out at its start; null: none
    base_commit {key} NOT NULL,         -- where it began
    host {key} NOT NULL,                -- the machine that has the worktrees
    plan {json} NOT NULL,               -- what all rounds have alike: checks, set-up, judge, limits
    budget_micros {integer},            -- what it may cost in all; null: no limit of its own
    merged_commit {key},                -- the winner's commit that was last merged
    reason TEXT,                        -- why it is over
    created_at {integer} NOT NULL,      -- when it was started
    created_by TEXT NOT NULL,           -- by whom; its mailbox is told how it goes
    ended_at {integer},                 -- when it came to its end
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE INDEX races_by_project ON races (project_id, id);
CREATE INDEX races_by_state ON races (state, id);
CREATE INDEX races_ended ON races (ended_at, id) WHERE ended_at IS NOT NULL;

-- Rounds of races: attempts from one base commit, of which one wins. Writer: races.
CREATE TABLE rounds (
    id {key} PRIMARY KEY,               -- rnd_…
    race_id {key} NOT NULL,             -- the race that it belongs to
    project_id {key} NOT NULL,          -- the project of that
    number {integer} NOT NULL,          -- its place in the race, from 1
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('running', 'selecting', 'failed', 'completed', 'abandoned')),
    parent_id {key},                    -- the round whose winner it goes on from; null: the race's base
    base_attempt_id {key},              -- the attempt that had won there
    base_commit {key} NOT NULL,         -- what its attempts begin with
    prompt TEXT NOT NULL,               -- what is asked in it
    budget_micros {integer},            -- what it may cost; null: no limit of its own
    winner_id {key},                    -- the attempt that won
    winner_commit {key},                -- the commit that the next round goes on from
    reason TEXT,                        -- why that one won, or why the round is in this state
    decided_by TEXT,                    -- who chose
    goes_on {integer} NOT NULL          -- 1: something of it happens by itself
        CHECK (goes_on IN (0, 1)),
    host {key} NOT NULL,                -- the machine that has the worktrees
    owner {key},                        -- who drives it
    fence {integer} NOT NULL,           -- raised whenever somebody takes it to drive it
    lease_until {integer},              -- whoever drives it is silent after this moment
    created_at {integer} NOT NULL,      -- when it was begun
    ended_at {integer},                 -- when it was decided or given up
    CHECK ((ended_at IS NULL) = (state IN ('running', 'selecting', 'failed')))
) {strict};

CREATE UNIQUE INDEX rounds_by_race ON rounds (race_id, number);
CREATE INDEX rounds_open ON rounds (host, id) WHERE goes_on = 1;

-- Attempts of rounds: one agent, one way of asking, one worktree. Writer: races.
CREATE TABLE attempts (
    id {key} PRIMARY KEY,               -- att_…
    race_id {key} NOT NULL,             -- the race that it belongs to
    round_id {key} NOT NULL,            -- the round that it is in
    project_id {key} NOT NULL,          -- the project of the race
    number {integer} NOT NULL           -- its place in the round, from 1
        CHECK (number > 0),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('preparing', 'running', 'checking', 'completed', 'failed', 'timed_out',
                         'cancelled')),
    agent {key},                        -- who tries, by name; null: whoever answers in the project
    agent_version {integer},            -- the version of the agent that its run had
    provider {key},                     -- the CLI that its run had
    model {key},                        -- the model that its run had
    variation TEXT,                     -- in which way it was asked
    prompt TEXT NOT NULL,               -- what it was asked in all
    branch {key} NOT NULL,              -- the branch of its worktree
    worktree TEXT NOT NULL,             -- where it works
    port {integer},                     -- a port of its own, for a server that it starts
    sandbox {key},                      -- what keeps it in its worktree; none: nothing does
    run_id {key},                       -- its run
    session_id {key},                   -- the conversation of that
    tries {integer} NOT NULL,           -- how often it was tried
    commit_id {key},                    -- what it left, as it was checked
    checked_tree {key},                 -- what was in its worktree when the checks had run
    passed {integer}                    -- 1: it passed all gates; null: they have not run, or there are none
        CHECK (passed IN (0, 1)),
    checks {json} NOT NULL,             -- the gates that were run, and how each ended
    files {integer},                    -- how many files it changed
    insertions {integer},               -- how many lines it added
    deletions {integer},                -- how many lines it took away
    earlier_micros {integer},           -- what earlier tries of it cost
    cost_micros {integer},              -- what it cost in all; null: not known
    reason TEXT,                        -- why it is in this state
    created_at {integer} NOT NULL,      -- when it was planned
    started_at {integer},               -- when its run was asked for
    ended_at {integer},                 -- when it came to its end
    cleaned_at {integer},               -- when its worktree was taken away
    CHECK ((ended_at IS NULL) = (state IN ('preparing', 'running', 'checking')))
) {strict};

CREATE UNIQUE INDEX attempts_by_round ON attempts (round_id, number);
CREATE INDEX attempts_by_race ON attempts (race_id, id);
CREATE INDEX attempts_of_run ON attempts (run_id) WHERE state = 'running';
CREATE INDEX attempts_in_place ON attempts (worktree) WHERE cleaned_at IS NULL;

-- What judges said of the attempts of a round, each time they were asked. Writer: races.
CREATE TABLE verdicts (
    id {key} PRIMARY KEY,               -- vdt_…
    race_id {key} NOT NULL,             -- the race that it belongs to
    round_id {key} NOT NULL,            -- the round that is judged
    project_id {key} NOT NULL,          -- the project of the race
    number {integer} NOT NULL,          -- its place in the round, from 1
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('asked', 'given', 'failed')),
    judge {key} NOT NULL,               -- the agent that was asked
    model {key},                        -- its model
    run_id {key},                       -- the run in which it answered
    labels {json} NOT NULL,             -- which attempt was shown under which letter, in what order
    prompt_hash {key} NOT NULL,         -- SHA-256 of what it was shown
    truncated {integer} NOT NULL        -- 1: some of a diff was too long to be shown
        CHECK (truncated IN (0, 1)),
    ranking {json},                     -- groups of attempts, the best first; equal ones in one group
    reason TEXT,                        -- its reasons, or why it does not count
    cost_micros {integer},              -- what it cost; null: not known
    created_at {integer} NOT NULL,      -- when it was asked
    ended_at {integer},                 -- when it had answered
    CHECK ((ended_at IS NULL) = (state = 'asked'))
) {strict};

CREATE UNIQUE INDEX verdicts_by_round ON verdicts (round_id, number);
CREATE INDEX verdicts_by_race ON verdicts (race_id, id);

-- Winners as they were chosen, with who chose and what the ranking had said. Writer: races.
CREATE TABLE choices (
    round_id {key} NOT NULL,            -- the round
    number {integer} NOT NULL,          -- its place in the round, from 1; the last one holds
    verb {key} NOT NULL                 -- how it came about
        CHECK (verb IN ('select', 'overrule', 'graft')),
    attempt_id {key} NOT NULL,          -- the attempt that was chosen
    commit_id {key} NOT NULL,           -- its commit at that time
    ranked_first_id {key},              -- the attempt that ranked first at that time
    by TEXT NOT NULL,                   -- who chose
    reason TEXT,                        -- why
    at {integer} NOT NULL,              -- when
    PRIMARY KEY (round_id, number)
) {strict};

-- Files of other attempts that were tried on a winner. Writer: races.
CREATE TABLE grafts (
    id {key} PRIMARY KEY,               -- grf_…
    round_id {key} NOT NULL,            -- the round
    attempt_id {key} NOT NULL,          -- the attempt that they are from
    files {json} NOT NULL,              -- which files
    commit_id {key},                    -- winner and files together; null: they do not fit
    kept {integer} NOT NULL             -- 1: it was not worse, and is the winner's commit since
        CHECK (kept IN (0, 1)),
    checks {json} NOT NULL,             -- how the gates ended with them
    reason TEXT NOT NULL,               -- why it was kept, or not
    by TEXT NOT NULL,                   -- who tried
    at {integer} NOT NULL               -- when
) {strict};

CREATE INDEX grafts_by_round ON grafts (round_id, id);
