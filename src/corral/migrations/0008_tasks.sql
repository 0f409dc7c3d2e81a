-- Tasks: the nodes of a project's dependency graph. Writer: tasks.
CREATE TABLE tasks (
    id {key} PRIMARY KEY,               -- tsk_…
    project_id {key} NOT NULL,          -- the project whose graph contains the task
    key {key} NOT NULL,                 -- name of the task in that graph
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('pending', 'ready', 'running', 'submitted', 'done', 'failed', 'blocked',
                         'paused', 'skipped', 'cancelled')),
    role {key},                         -- role of the agents that may claim it; null: any role
    title TEXT NOT NULL,                -- summary in one line
    description TEXT,                   -- instructions for the agent
    files {json} NOT NULL,              -- paths that the task will change, relative to the project
    priority {integer} NOT NULL,        -- higher priorities are claimed first
    check_command TEXT,                 -- command that accepts or rejects a submission; null: reviewed by others
    lead {key},                         -- mailbox that is notified about the task
    assignee_id {key},                  -- the only agent that may claim it; null: any agent of its role
    agent_id {key},                     -- the agent that claimed it last
    run_id {key},                       -- the run that works on it
    dir TEXT,                           -- working directory of that run; null: the project's directory
    fence {integer} NOT NULL,           -- fencing token, incremented by each claim
    lease_until {integer},              -- end of the claim's lease
    attempts {integer} NOT NULL,        -- number of claims since the last submission
    open_dependencies {integer} NOT NULL, -- number of dependencies that are neither done nor skipped
    failed_dependencies {integer} NOT NULL, -- number of dependencies that failed, were cancelled or are blocked
    conflicts_with_id {key},            -- running task that uses the same files; not claimable until that task ends
    blocked_by_id {key},                -- failed or cancelled task that blocks it, directly or indirectly
    evidence {json},                    -- evidence of the last submission
    reason TEXT,                        -- reason for the current state
    check_lease_until {integer},        -- end of the lease of the process that runs the check
    created_at {integer} NOT NULL,      -- time of the declaration
    created_by TEXT NOT NULL,           -- actor that declared it
    ready_at {integer},                 -- time at which its dependencies were last satisfied
    started_at {integer},               -- time of the last claim
    submitted_at {integer},             -- time of the last submission
    ended_at {integer},                 -- time of the end
    archived_at {integer},              -- time of archival; null: shown in lists
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state NOT IN ('done', 'failed', 'skipped', 'cancelled')))
) {strict};

CREATE UNIQUE INDEX tasks_by_key ON tasks (key, project_id) WHERE archived_at IS NULL;
CREATE INDEX tasks_by_project ON tasks (project_id, id) WHERE archived_at IS NULL;
CREATE INDEX tasks_by_state ON tasks (project_id, state, id) WHERE archived_at IS NULL;
CREATE INDEX tasks_archived ON tasks (project_id, id) WHERE archived_at IS NOT NULL;
CREATE INDEX tasks_archived_since ON tasks (project_id, archived_at, id)
    WHERE archived_at IS NOT NULL;
CREATE INDEX tasks_by_agent ON tasks (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX tasks_claimable ON tasks (project_id, priority DESC, ready_at, id)
    WHERE state = 'ready' AND conflicts_with_id IS NULL AND assignee_id IS NULL;
CREATE INDEX tasks_claimable_by_role ON tasks (project_id, role, priority DESC, ready_at, id)
    WHERE state = 'ready' AND conflicts_with_id IS NULL AND assignee_id IS NULL;
CREATE INDEX tasks_claimable_assigned ON tasks (assignee_id, project_id, priority DESC, ready_at, id)
    WHERE state = 'ready' AND conflicts_with_id IS NULL AND assignee_id IS NOT NULL;
CREATE INDEX tasks_ready ON tasks (project_id, id) WHERE state = 'ready' AND conflicts_with_id IS NULL;
CREATE INDEX tasks_running ON tasks (project_id, id) WHERE state = 'running';
CREATE INDEX tasks_by_lease ON tasks (lease_until) WHERE state = 'running';
CREATE INDEX tasks_running_by_run ON tasks (run_id) WHERE state = 'running' AND run_id IS NOT NULL;
CREATE INDEX tasks_by_conflict ON tasks (conflicts_with_id) WHERE conflicts_with_id IS NOT NULL;
CREATE INDEX tasks_by_blocker ON tasks (blocked_by_id) WHERE blocked_by_id IS NOT NULL;
CREATE INDEX tasks_to_check ON tasks (submitted_at)
    WHERE state = 'submitted' AND check_command IS NOT NULL;
CREATE INDEX tasks_to_review ON tasks (submitted_at, id)
    WHERE state = 'submitted' AND check_command IS NULL;
CREATE INDEX tasks_ended ON tasks (ended_at, id, imported_at) WHERE ended_at IS NOT NULL;
-- The cost of a task ends where its run claimed the next task.
CREATE INDEX tasks_by_run ON tasks (run_id, started_at, id) WHERE run_id IS NOT NULL;

-- Dependencies between tasks: the edges of the graph. Writer: tasks.
CREATE TABLE task_dependencies (
    task_id {key} NOT NULL,             -- the dependent task
    depends_on_id {key} NOT NULL,       -- the task that it waits for
    PRIMARY KEY (task_id, depends_on_id)
) {strict};

CREATE INDEX task_dependencies_by_dependency ON task_dependencies (depends_on_id, task_id);

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
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- end time
    imported_at {integer},              -- time of the import; null: not imported
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
    imported_at {integer}               -- time of the import; null: not imported
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
