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
