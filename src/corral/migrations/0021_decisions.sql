-- Decisions of agents, and their confirmation by people. Writer: decisions.
CREATE TABLE decisions (
    id {key} PRIMARY KEY,               -- dec_…
    project_id {key},                   -- the project; null: none
    author {key} NOT NULL,              -- mailbox of the author
    run_id {key},                       -- run that decided; null: not known
    key {key},                          -- idempotency key, unique per author
    category {key} NOT NULL,            -- architecture, dependency, style …
    title TEXT NOT NULL,                -- the decision
    rationale TEXT NOT NULL,            -- reasons for it
    alternatives {json} NOT NULL,       -- rejected alternatives
    answerers {json} NOT NULL,          -- who may confirm: user:NAME or agent:NAME; []: any person
    deadline_outcome {key} NOT NULL     -- outcome if it is not confirmed by the deadline
        CHECK (deadline_outcome IN ('reject', 'dismiss')),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('recorded', 'proposed', 'confirmed', 'rejected', 'dismissed')),
    decided_by {key},                   -- who confirmed, rejected or dismissed it; null: the deadline
    reason TEXT,                        -- reason of the outcome
    deadline_at {integer},              -- time from which it cannot be confirmed; null: needs no confirmation
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time of the confirmation, rejection or dismissal
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state IN ('recorded', 'proposed')))
) {strict};

CREATE INDEX decisions_proposed ON decisions (id) WHERE state = 'proposed';
CREATE INDEX decisions_due ON decisions (deadline_at, id) WHERE state = 'proposed';
CREATE INDEX decisions_by_project ON decisions (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX decisions_proposed_by_project ON decisions (project_id)
    WHERE state = 'proposed' AND project_id IS NOT NULL;
CREATE INDEX decisions_proposed_by_author ON decisions (author) WHERE state = 'proposed';
CREATE UNIQUE INDEX decisions_by_key ON decisions (author, key) WHERE key IS NOT NULL;
