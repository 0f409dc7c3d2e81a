-- Processes of agents, from queued to their end. Writer: runs.
CREATE TABLE runs (
    id {key} PRIMARY KEY,               -- run_…
    name TEXT,                          -- for people
    title TEXT,                         -- what it is about: the first words of its prompt
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('queued', 'starting', 'running', 'stopping', 'completed', 'failed',
                         'crashed', 'cancelled', 'timed_out', 'interrupted')),
    project_id {key},                   -- the project that it belongs to, if any
    session_id {key},                   -- the conversation that it goes on with, if any
    agent_id {key},                     -- who runs, if it was given an agent
    agent_version {integer},            -- the version of the agent's instructions that it uses
    parent_id {key},                    -- the run that started this one
    provider {key} NOT NULL,            -- claude, codex, … ; plain: a command that nothing is known of
    provider_version TEXT,              -- what the agent's program says of itself
    model {key},                        -- as the provider told it
    mode {key} NOT NULL                 -- how its input and output are held
        CHECK (mode IN ('pipe', 'pty', 'acp', 'recorded')),
    command TEXT NOT NULL,              -- the program
    args {json} NOT NULL,               -- its arguments
    cwd TEXT NOT NULL,                  -- where it runs
    owner {key},                        -- the supervisor that has it, or had it last
    fence {integer} NOT NULL,           -- raised whenever a supervisor takes it
    lease_until {integer},              -- the supervisor is silent after this moment
    seen_at {integer},                  -- when a supervisor last said how it is
    node_id {key},                      -- the node on which it runs, where a daemon serves one
    host {key},                         -- the machine on which it runs
    boot_id {key},                      -- that machine's boot
    pid {integer},                      -- the agent's process
    start_token {key},                  -- when that process began, in the machine's own count
    supervisor_pid {integer},           -- the supervisor's process
    supervisor_token {key},             -- when that process began
    attempts {integer} NOT NULL,        -- how often the agent was started
    quick_failures {integer} NOT NULL,  -- attempts in a row that failed within seconds
    due_at {integer} NOT NULL,          -- not to be started before
    stop_kind {key}                     -- what wants it to end; null: nobody does
        CHECK (stop_kind IN ('asked', 'timed_out', 'interrupted', 'over_budget')),
    stop_reason TEXT,                   -- why, in words
    exit_code {integer},                -- what the agent's process returned; null: not known, or ended by a signal
    signal {integer},                   -- the signal that ended it
    reason TEXT,                        -- why it is in this state
    attention {key}                     -- what somebody should see to
        CHECK (attention IN ('needs_input', 'stuck', 'parked')),
    attention_at {integer},             -- since when
    tokens {integer},                   -- used so far; null: not known
    cost_micros {integer},              -- spent so far; null: not known
    output_bytes {integer} NOT NULL,    -- written so far
    cpu_ms {integer},                   -- of its whole process tree
    peak_bytes {integer},               -- most memory that the whole tree held
    created_at {integer} NOT NULL,      -- when it was asked for
    started_at {integer},               -- when the agent was first started; null while it waits
    ended_at {integer},                 -- when it reached its end
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    dialog {json},                      -- the question on the screen with its options; null: none
    screen_rows {integer},              -- rows of its terminal; null: it has none
    screen_columns {integer},           -- columns of its terminal; null: it has none
    denials {json},                     -- how often each tool was denied, by attempt; null: never
    CHECK ((ended_at IS NULL) = (state IN ('queued', 'starting', 'running', 'stopping')))
) {strict};

CREATE INDEX runs_live ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_live_of_project ON runs (project_id, ended_at, id) WHERE project_id IS NOT NULL;
CREATE INDEX runs_by_name ON runs (name, id) WHERE name IS NOT NULL;
CREATE INDEX runs_by_state ON runs (state, id);
CREATE INDEX runs_by_project ON runs (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX runs_by_project_state ON runs (project_id, state, id) WHERE project_id IS NOT NULL;
CREATE INDEX runs_by_session ON runs (session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX runs_by_agent ON runs (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX runs_active_of_agent ON runs (agent_id)
    WHERE agent_id IS NOT NULL AND ended_at IS NULL AND state <> 'queued';
CREATE INDEX runs_by_pid ON runs (pid, id) WHERE pid IS NOT NULL;
CREATE INDEX runs_ended ON runs (ended_at, imported_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_failed ON runs (ended_at)
    WHERE state NOT IN ('queued', 'starting', 'running', 'stopping', 'completed', 'cancelled');

-- What a run was started with, and what it found. Writer: runs.
CREATE TABLE launches (
    run_id {key} PRIMARY KEY,           -- the run
    host {key},                         -- the machine on which it must run; null: on any
    labels {json} NOT NULL,             -- what the machine on which it runs must offer
    prompt TEXT,                        -- what the agent is told
    resume_session TEXT,                -- the provider's own id of the conversation to go on with
    env {json} NOT NULL,                -- variables that were given by name and value
    secrets {json} NOT NULL,            -- variables whose values are secrets: where to find them
    approvals {json} NOT NULL,          -- classes of questions that are answered with yes
    raw {integer} NOT NULL,             -- 1: the command line is the user's own, nothing is added to it
    interactive {integer} NOT NULL,     -- 1: a conversation on a terminal, 0: one prompt
    timeout_ms {integer},               -- it is stopped after this time
    idle_ms {integer},                  -- it is ended after this time without anything to see
    grace_ms {integer} NOT NULL,        -- between asking it to end and killing it
    restarts {integer} NOT NULL,        -- how often it may be started again after a failure
    budget_micros {integer},            -- what it may spend
    output_cap {integer} NOT NULL,      -- bytes of output that are kept
    sandbox {key},                      -- what keeps it in its worktree: bubblewrap, landlock; boxed: and by what, without network; null: nothing
    environment {json} NOT NULL         -- what it found: commit, branch, versions, allowed variables
) {strict};

-- How much a run's whole process tree used, at moments that grow apart with its age. Writer: runs.
CREATE TABLE samples (
    run_id {key} NOT NULL,              -- the run
    at {integer} NOT NULL,              -- when
    cpu_ms {integer} NOT NULL,          -- processor time of the tree so far
    memory_bytes {integer} NOT NULL,    -- what it held then
    processes {integer} NOT NULL,       -- how many there were
    PRIMARY KEY (run_id, at)
) {strict};
