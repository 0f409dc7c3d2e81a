-- Nodes of the graphs of work that projects have. Writer: tasks.
CREATE TABLE tasks (
    id {key} PRIMARY KEY,               -- tsk_…
    project_id {key} NOT NULL,          -- the project whose graph it is in
    key {key} NOT NULL,                 -- its name in that graph
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('pending', 'ready', 'running', 'submitted', 'done', 'failed', 'blocked',
                         'paused', 'skipped', 'cancelled')),
    role {key},                         -- the role of the agents that may take it; null: of any
    title TEXT NOT NULL,                -- what it is about, in a line
    description TEXT,                   -- what is to be done
    files {json} NOT NULL,              -- paths that it will change, relative to the project
    priority {integer} NOT NULL,        -- higher is taken first
    check_command TEXT,                 -- what Corral runs to accept it; null: somebody else must
    lead {key},                         -- the mailbox that is told how it goes
    assignee_id {key},                  -- the only agent that may take it; null: any of its role
    agent_id {key},                     -- who does it, or did it last
    run_id {key},                       -- the run in which it is done
    dir TEXT,                           -- where it is done; null: in the project's directory
    fence {integer} NOT NULL,           -- raised whenever somebody takes it
    lease_until {integer},              -- whoever does it is silent after this moment
    attempts {integer} NOT NULL,        -- how often it was taken since it was last submitted
    open_needs {integer} NOT NULL,      -- how many of the tasks that it needs are neither done nor skipped
    broken_needs {integer} NOT NULL,    -- how many of those failed, were cancelled, or are blocked
    held_by {key},                      -- the running task with which it shares files
    cause_id {key},                     -- the failed or cancelled task for which it is blocked
    evidence {json},                    -- what its doer submitted last
    reason TEXT,                        -- why it is in this state
    check_until {integer},              -- somebody runs its check until then
    created_at {integer} NOT NULL,      -- when it was declared
    created_by TEXT NOT NULL,           -- by whom
    ready_at {integer},                 -- when all that it needs was last there
    started_at {integer},               -- when it was last taken
    submitted_at {integer},             -- when it was last submitted
    ended_at {integer},                 -- when it came to its end
    archived_at {integer},              -- out of the lists since then
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state NOT IN ('done', 'failed', 'skipped', 'cancelled')))
) {strict};

CREATE UNIQUE INDEX tasks_keys ON tasks (key, project_id) WHERE archived_at IS NULL;
CREATE INDEX tasks_by_project ON tasks (project_id, id) WHERE archived_at IS NULL;
CREATE INDEX tasks_by_state ON tasks (project_id, state, id) WHERE archived_at IS NULL;
CREATE INDEX tasks_archived ON tasks (project_id, id) WHERE archived_at IS NOT NULL;
CREATE INDEX tasks_archived_since ON tasks (project_id, archived_at, id)
    WHERE archived_at IS NOT NULL;
CREATE INDEX tasks_by_agent ON tasks (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX tasks_to_take ON tasks (project_id, priority DESC, ready_at, id)
    WHERE state = 'ready' AND held_by IS NULL AND assignee_id IS NULL;
CREATE INDEX tasks_to_take_by_role ON tasks (project_id, role, priority DESC, ready_at, id)
    WHERE state = 'ready' AND held_by IS NULL AND assignee_id IS NULL;
CREATE INDEX tasks_assigned ON tasks (assignee_id, project_id, priority DESC, ready_at, id)
    WHERE state = 'ready' AND held_by IS NULL AND assignee_id IS NOT NULL;
CREATE INDEX tasks_ready ON tasks (project_id, id) WHERE state = 'ready' AND held_by IS NULL;
CREATE INDEX tasks_running ON tasks (project_id, id) WHERE state = 'running';
CREATE INDEX tasks_due ON tasks (lease_until) WHERE state = 'running';
CREATE INDEX tasks_of_run ON tasks (run_id) WHERE state = 'running' AND run_id IS NOT NULL;
CREATE INDEX tasks_held ON tasks (held_by) WHERE held_by IS NOT NULL;
CREATE INDEX tasks_by_cause ON tasks (cause_id) WHERE cause_id IS NOT NULL;
CREATE INDEX tasks_to_check ON tasks (submitted_at)
    WHERE state = 'submitted' AND check_command IS NOT NULL;
CREATE INDEX tasks_to_judge ON tasks (submitted_at, id)
    WHERE state = 'submitted' AND check_command IS NULL;
CREATE INDEX tasks_ended ON tasks (ended_at, id, imported_at) WHERE ended_at IS NOT NULL;
-- The cost of a task ends where its run claimed the next task.
CREATE INDEX tasks_by_run ON tasks (run_id, started_at, id) WHERE run_id IS NOT NULL;

-- Which task waits for which. Writer: tasks.
CREATE TABLE edges (
    task_id {key} NOT NULL,             -- the task that waits
    needs_id {key} NOT NULL,            -- the task that it needs
    PRIMARY KEY (task_id, needs_id)
) {strict};

CREATE INDEX edges_by_need ON edges (needs_id, task_id);

-- Work that an agent or a person hands to an agent, and its result. Writer: delegations.
CREATE TABLE delegations (
    id {key} PRIMARY KEY,               -- dlg_…
    project_id {key},                   -- the project; null: none
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'done', 'failed', 'cancelled', 'expired')),
    from_mailbox {key} NOT NULL,        -- mailbox of the sender, which gets the result
    to_agent_id {key} NOT NULL,         -- the assigned agent
    to_mailbox {key} NOT NULL,          -- mailbox that got the assignment
    parent_id {key},                    -- delegation that this is a part of; null: none
    task_id {key},                      -- delegated task; null: only the text
    text TEXT NOT NULL,                 -- the work
    context TEXT,                       -- background information
    result {json},                      -- the result
    reason TEXT,                        -- reason of the outcome
    letter_id {key},                    -- letter with the assignment
    deadline_at {integer},              -- expires without a result at this time; null: no deadline
    created_at {integer} NOT NULL,      -- creation time
    ended_at {integer},                 -- end time
    imported_at {integer},              -- import time of a row from another tool; null: created by Corral
    correlation_id {key},               -- letter chain that its letters continue; null: created by a person
    hops {integer},                     -- agent letters that led to the delegating run; null: created by a person
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE INDEX delegations_active ON delegations (id) WHERE state = 'active';
CREATE INDEX delegations_from ON delegations (from_mailbox, id);
CREATE INDEX delegations_to ON delegations (to_agent_id, id);
CREATE INDEX delegations_by_parent ON delegations (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX delegations_of_task ON delegations (task_id)
    WHERE task_id IS NOT NULL AND state = 'active';
CREATE INDEX delegations_due ON delegations (deadline_at)
    WHERE state = 'active' AND deadline_at IS NOT NULL;
CREATE INDEX delegations_by_project ON delegations (project_id, id) WHERE project_id IS NOT NULL;

-- The latest plan of each agent, and of each run without an agent. Writer: plans.
CREATE TABLE plans (
    subject {key} PRIMARY KEY,          -- owner of the plan: agt_…, or run_… of a run without an agent
    run_id {key},                       -- run that reported it; null: none
    project_id {key},                   -- the project; null: none
    entries {json} NOT NULL,            -- steps: content, priority, status
    updated_at {integer} NOT NULL,      -- time of the last report
    imported_at {integer}               -- import time of a row from another tool; null: created by Corral
) {strict};

-- The latest progress report of each agent and task. Writer: plans.
CREATE TABLE progress (
    id {key} PRIMARY KEY,               -- agent id, slash, task id if any
    agent_id {key} NOT NULL,            -- the agent
    task_id {key},                      -- the task; null: none
    run_id {key},                       -- run that reported it; null: none
    project_id {key},                   -- the project; null: none
    summary TEXT NOT NULL,              -- progress in words
    percent {integer}                   -- 0 to 100; null: not reported
        CHECK (percent BETWEEN 0 AND 100),
    updated_at {integer} NOT NULL       -- time of the last report
) {strict};

CREATE INDEX plans_by_project ON plans (project_id) WHERE project_id IS NOT NULL;
CREATE INDEX progress_by_project ON progress (project_id) WHERE project_id IS NOT NULL;
CREATE INDEX progress_by_task ON progress (task_id, id) WHERE task_id IS NOT NULL;
