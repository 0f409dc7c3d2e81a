-- Requests of agents to the host: create an agent, schedule a task, send to a chat, use a secret.
-- Writer: host_requests.
CREATE TABLE host_requests (
    id {key} PRIMARY KEY,               -- req_…
    agent_id {key} NOT NULL,            -- the requesting agent
    run_id {key},                       -- run that requested it; null: not known
    session_id {key},                   -- session that requested it; null: not known
    key {key},                          -- idempotency key, unique per agent
    action {key} NOT NULL,              -- requested action: create_agent, schedule_prompt …
    arguments {json} NOT NULL,          -- arguments of the action; never the value of a secret
    effect TEXT NOT NULL,               -- complete description of the effect, as shown to the approvers
    question_id {key},                  -- question to the approvers; null: decided by a rule
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('waiting', 'done', 'refused', 'expired', 'failed')),
    decided_by {key},                   -- who approved or refused it; rule: a tool grant or denial
    result {json},                      -- ids and names of what was created
    reason TEXT,                        -- reason of the refusal or failure
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time of the outcome
    CHECK ((ended_at IS NULL) = (state = 'waiting'))
) {strict};

-- Counts the open requests of an agent at each new request, however many it has made.
CREATE INDEX host_requests_waiting_of_agent ON host_requests (agent_id) WHERE state = 'waiting';

CREATE UNIQUE INDEX host_requests_by_key ON host_requests (agent_id, key) WHERE key IS NOT NULL;
CREATE INDEX host_requests_by_agent ON host_requests (agent_id, id);
CREATE INDEX host_requests_waiting ON host_requests (action, id) WHERE state = 'waiting';
