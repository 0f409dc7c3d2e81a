-- Races: several attempts at the same work, round by round. Writer: races.
CREATE TABLE races (
    id {key} PRIMARY KEY,               -- rac_…
    project_id {key} NOT NULL,          -- the project in which it runs
    name TEXT NOT NULL,                 -- short name
    prompt TEXT NOT NULL,               -- prompt of the first round
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'completed', 'abandoned')),
    repository TEXT NOT NULL,           -- git repository of the worktrees; empty: imported
    subdirectory TEXT NOT NULL,         -- directory of the project, relative to the top of the repository
    managed_repository {integer} NOT NULL -- 1: Corral created the repository, because the directory is in none
        CHECK (managed_repository IN (0, 1)),
    branch TEXT,                        -- branch that was checked out at the start; null: none
    base_commit {key} NOT NULL,         -- base commit of the first round
    host {key} NOT NULL,                -- machine that has the worktrees
    plan {json} NOT NULL,               -- settings of all rounds: checks, set-up, judge, limits
    budget_micros {integer},            -- maximum total cost; null: no limit of its own
    merged_commit {key},                -- winner's commit that was merged last
    reason TEXT,                        -- reason for the end
    created_at {integer} NOT NULL,      -- time of the start
    created_by TEXT NOT NULL,           -- actor that started it; its mailbox is notified
    ended_at {integer},                 -- time of the end
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE INDEX races_by_project ON races (project_id, id);
CREATE INDEX races_by_state ON races (state, id);
CREATE INDEX races_ended ON races (ended_at, id) WHERE ended_at IS NOT NULL;

-- Rounds of races: attempts from one base commit, one of which wins. Writer: races.
CREATE TABLE rounds (
    id {key} PRIMARY KEY,               -- rnd_…
    race_id {key} NOT NULL,             -- the race
    project_id {key} NOT NULL,          -- the project of the race
    number {integer} NOT NULL,          -- number in the race, from 1
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('running', 'selecting', 'failed', 'completed', 'abandoned')),
    parent_id {key},                    -- round whose winner is the base; null: the base commit of the race
    base_attempt_id {key},              -- attempt that won that round
    base_commit {key} NOT NULL,         -- commit from which the attempts start
    prompt TEXT NOT NULL,               -- prompt of the round
    budget_micros {integer},            -- maximum cost; null: no limit of its own
    winner_id {key},                    -- attempt that won
    winner_commit {key},                -- commit from which the next round starts
    reason TEXT,                        -- reason for the selection or for the current state
    decided_by TEXT,                    -- actor that selected the winner
    needs_driver {integer} NOT NULL     -- 1: a driver has work to do: attempts, a judge or an automatic selection
        CHECK (needs_driver IN (0, 1)),
    host {key} NOT NULL,                -- machine that has the worktrees
    owner {key},                        -- driver that holds the lease
    fence {integer} NOT NULL,           -- fencing token, incremented whenever a driver acquires the round
    lease_until {integer},              -- end of the driver's lease
    created_at {integer} NOT NULL,      -- time of the start
    ended_at {integer},                 -- time of the selection or abandonment
    CHECK ((ended_at IS NULL) = (state IN ('running', 'selecting', 'failed')))
) {strict};

CREATE UNIQUE INDEX rounds_by_race ON rounds (race_id, number);
CREATE INDEX rounds_needing_driver ON rounds (host, id) WHERE needs_driver = 1;

-- Attempts of rounds: one agent, one prompt, one worktree. Writer: races.
CREATE TABLE attempts (
    id {key} PRIMARY KEY,               -- att_…
    race_id {key} NOT NULL,             -- the race
    round_id {key} NOT NULL,            -- the round
    project_id {key} NOT NULL,          -- the project of the race
    number {integer} NOT NULL           -- number in the round, from 1
        CHECK (number > 0),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('preparing', 'running', 'checking', 'completed', 'failed', 'timed_out',
                         'cancelled')),
    agent {key},                        -- name of the agent; null: the default agent of the project
    agent_version {integer},            -- version of the agent at the start of the run
    provider {key},                     -- agent CLI of the run
    model {key},                        -- model of the run
    variation TEXT,                     -- variation that was appended to the prompt
    prompt TEXT NOT NULL,               -- complete prompt
    branch {key} NOT NULL,              -- git branch of its worktree
    worktree TEXT NOT NULL,             -- path of its worktree
    port {integer},                     -- port reserved for a server of the attempt
    sandbox {key},                      -- kind of the sandbox; none: not sandboxed
    run_id {key},                       -- its run
    session_id {key},                   -- session of that run
    try_number {integer} NOT NULL,      -- 1 for the first try, incremented by each retry
    commit_id {key},                    -- commit with its work, as it was checked
    checked_tree {key},                 -- fingerprint of the worktree after the checks
    passed {integer}                    -- 1: passed all checks; null: not checked, or there are no checks
        CHECK (passed IN (0, 1)),
    checks {json} NOT NULL,             -- results of the checks
    files {integer},                    -- number of changed files
    insertions {integer},               -- number of added lines
    deletions {integer},                -- number of deleted lines
    previous_cost_micros {integer},     -- cost of the earlier tries
    cost_micros {integer},              -- total cost of all tries; null: unknown
    reason TEXT,                        -- reason for the current state
    created_at {integer} NOT NULL,      -- time of creation
    started_at {integer},               -- time at which its run was requested
    ended_at {integer},                 -- time of the end
    cleaned_at {integer},               -- time at which its worktree was removed
    CHECK ((ended_at IS NULL) = (state IN ('preparing', 'running', 'checking')))
) {strict};

CREATE UNIQUE INDEX attempts_by_round ON attempts (round_id, number);
CREATE INDEX attempts_by_race ON attempts (race_id, id);
CREATE INDEX attempts_of_run ON attempts (run_id) WHERE state = 'running';
CREATE INDEX attempts_with_worktree ON attempts (worktree) WHERE cleaned_at IS NULL;

-- Verdicts of judges on the attempts of a round, one for each sample. Writer: races.
CREATE TABLE verdicts (
    id {key} PRIMARY KEY,               -- vdt_…
    race_id {key} NOT NULL,             -- the race
    round_id {key} NOT NULL,            -- the round that is judged
    project_id {key} NOT NULL,          -- the project of the race
    number {integer} NOT NULL,          -- number in the round, from 1
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('pending', 'given', 'failed')),
    judge {key} NOT NULL,               -- agent that judges
    model {key},                        -- model of the judge
    run_id {key},                       -- run of the judge
    labels {json} NOT NULL,             -- attempt ids by the label shown to the judge, in that order
    prompt_hash {key} NOT NULL,         -- SHA-256 of the judge's prompt
    truncated {integer} NOT NULL        -- 1: a diff was too long to be shown completely
        CHECK (truncated IN (0, 1)),
    ranking {json},                     -- groups of attempt ids, best first; ties share a group
    reason TEXT,                        -- explanation of the judge, or why the verdict failed
    cost_micros {integer},              -- cost; null: unknown
    created_at {integer} NOT NULL,      -- time of the request
    ended_at {integer},                 -- time of the answer
    CHECK ((ended_at IS NULL) = (state = 'pending'))
) {strict};

CREATE UNIQUE INDEX verdicts_by_round ON verdicts (round_id, number);
CREATE INDEX verdicts_by_race ON verdicts (race_id, id);

-- Selections of winners, and the ranking at that time. Writer: races.
CREATE TABLE selections (
    round_id {key} NOT NULL,            -- the round
    number {integer} NOT NULL,          -- number in the round, from 1; the last selection counts
    verb {key} NOT NULL                 -- kind of the selection
        CHECK (verb IN ('select', 'overrule', 'graft')),
    attempt_id {key} NOT NULL,          -- the winner
    commit_id {key} NOT NULL,           -- commit of the winner
    ranked_first_id {key},              -- attempt that ranked first at that time
    selected_by TEXT NOT NULL,          -- actor that selected
    reason TEXT,                        -- reason of the actor
    selected_at {integer} NOT NULL,     -- time of the selection
    PRIMARY KEY (round_id, number)
) {strict};

-- Grafts: files of other attempts that were tried on a winner. Writer: races.
CREATE TABLE grafts (
    id {key} PRIMARY KEY,               -- grf_…
    round_id {key} NOT NULL,            -- the round
    attempt_id {key} NOT NULL,          -- attempt that the files come from
    files {json} NOT NULL,              -- paths of the files
    commit_id {key},                    -- winner's commit with the files; null: they do not apply
    kept {integer} NOT NULL             -- 1: the result was not worse and became the winner's commit
        CHECK (kept IN (0, 1)),
    checks {json} NOT NULL,             -- results of the checks with the files
    reason TEXT NOT NULL,               -- why the graft was kept or rejected
    created_by TEXT NOT NULL,           -- actor that tried it
    created_at {integer} NOT NULL       -- time of the trial
) {strict};

CREATE INDEX grafts_by_round ON grafts (round_id, id);
