-- Processes of agents and commands, from the queue to their exit. Writer: runs.
CREATE TABLE runs (
    id {key} PRIMARY KEY,               -- run_…
    name TEXT,                          -- unique among live runs; null: unnamed
    title TEXT,                         -- one line about the run: the start of its prompt
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('queued', 'starting', 'running', 'stopping', 'completed', 'failed',
                         'crashed', 'cancelled', 'timed_out', 'interrupted')),
    project_id {key},                   -- null: no project
    session_id {key},                   -- null: not part of a session
    agent_id {key},                     -- null: a plain command, or an agent CLI without an agent record
    agent_version {integer},            -- version of the agent's definition that is used
    parent_id {key},                    -- the run that started this one
    provider {key} NOT NULL,            -- claude, codex, …; plain: a command without a known agent CLI
    provider_version TEXT,              -- version that the agent CLI reported
    model {key},                        -- model that the provider reported
    mode {key} NOT NULL                 -- how input and output are connected
        CHECK (mode IN ('pipe', 'pty', 'acp', 'recorded')),
    command TEXT NOT NULL,              -- program
    args {json} NOT NULL,               -- arguments of the program
    cwd TEXT NOT NULL,                  -- working directory
    owner {key},                        -- the supervisor that holds the lease, or held it last
    fence {integer} NOT NULL,           -- fencing token; incremented each time a supervisor acquires the run
    lease_until {integer},              -- end of the supervisor's lease, or of a dispatcher's claim on a queued run
    seen_at {integer},                  -- last report of a supervisor
    node_id {key},                      -- node of the machine, if a daemon serves it
    host {key},                         -- host name of the machine
    boot_id {key},                      -- boot of that machine
    pid {integer},                      -- process of the agent
    start_token {key},                  -- start time of that process, as the kernel reports it
    supervisor_pid {integer},           -- process of the supervisor
    supervisor_token {key},             -- start time of that process
    attempts {integer} NOT NULL,        -- number of starts
    quick_failures {integer} NOT NULL,  -- consecutive attempts that failed within seconds
    due_at {integer} NOT NULL,          -- earliest start
    stop_kind {key}                     -- why the run is being stopped; null: no stop was requested
        CHECK (stop_kind IN ('requested', 'timed_out', 'interrupted', 'over_budget')),
    stop_reason TEXT,                   -- reason of the stop, for people
    exit_code {integer},                -- exit status of the agent; null: unknown, or killed by a signal
    signal {integer},                   -- signal that killed the agent
    reason TEXT,                        -- reason for the current state
    attention {key}                     -- why the run needs a person
        CHECK (attention IN ('needs_input', 'stuck', 'parked')),
    attention_at {integer},             -- time when that began
    tokens {integer},                   -- tokens used so far; null: unknown
    cost_micros {integer},              -- cost so far, in millionths of a dollar; null: unknown
    output_bytes {integer} NOT NULL,    -- bytes of output so far
    cpu_ms {integer},                   -- CPU time of the process tree
    peak_bytes {integer},               -- peak memory of the process tree
    created_at {integer} NOT NULL,      -- time of the request
    started_at {integer},               -- first start of the agent; null: not started
    ended_at {integer},                 -- end of the run; null: live
    imported_at {integer},              -- time of the import; null: not imported
    dialog {json},                      -- open question on the screen, with its options; null: none
    screen_rows {integer},              -- rows of the terminal; null: no terminal
    screen_columns {integer},           -- columns of the terminal; null: no terminal
    denials {json},                     -- number of denials per tool and attempt; null: none
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

-- Parameters with which a run is started, and the environment it was started in. Writer: runs.
CREATE TABLE launches (
    run_id {key} PRIMARY KEY,           -- the run
    host {key},                         -- required host; null: any
    labels {json} NOT NULL,             -- labels that the node must have
    prompt TEXT,                        -- first prompt of the agent
    resume_session TEXT,                -- the provider's id of the conversation to resume
    env {json} NOT NULL,                -- environment variables given by value
    secrets {json} NOT NULL,            -- environment variables given as references to secrets
    approvals {json} NOT NULL,          -- classes of permission prompts that are approved in advance
    raw {integer} NOT NULL,             -- 1: the command line is used as given, no options are added
    interactive {integer} NOT NULL,     -- 1: a conversation at a terminal, 0: one prompt
    timeout_ms {integer},               -- time limit of the run
    idle_ms {integer},                  -- the run is ended after this time without activity
    grace_period_ms {integer} NOT NULL, -- time between SIGTERM and SIGKILL
    max_restarts {integer} NOT NULL,    -- maximum number of restarts after a failure
    budget_micros {integer},            -- spending limit, in millionths of a dollar; null: none
    max_output_bytes {integer} NOT NULL,  -- maximum size of the stored output; the middle is dropped
    sandbox {key},                      -- worktree sandbox: bubblewrap, landlock or none; session sandbox: session:TOOL; null: none
    environment {json} NOT NULL         -- recorded environment: commit, branch, versions, variables
) {strict};

-- Resource usage of a run's process tree; the interval grows with the age of the run. Writer: runs.
CREATE TABLE resource_samples (
    run_id {key} NOT NULL,              -- the run
    at {integer} NOT NULL,              -- time of the sample
    cpu_ms {integer} NOT NULL,          -- CPU time of the process tree so far
    memory_bytes {integer} NOT NULL,    -- memory of the process tree
    processes {integer} NOT NULL,       -- number of processes
    PRIMARY KEY (run_id, at)
) {strict};
