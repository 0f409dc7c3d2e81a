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
