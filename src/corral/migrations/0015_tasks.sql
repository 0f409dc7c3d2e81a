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
