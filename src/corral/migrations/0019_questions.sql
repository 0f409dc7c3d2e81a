-- Questions of agents to people and other agents, and their answers. Writer: questions.
CREATE TABLE questions (
    id {key} PRIMARY KEY,               -- qst_…
    project_id {key},                   -- the project; null: none
    asker {key} NOT NULL,               -- mailbox that gets the answer
    run_id {key},                       -- run that asked; null: not known
    key {key},                          -- idempotency key, unique per asker
    text TEXT NOT NULL,                 -- the question
    options {json} NOT NULL,            -- possible answers; []: any text
    free_text {integer} NOT NULL        -- 1: any text is accepted as an answer
        CHECK (free_text IN (0, 1)),
    answerers {json} NOT NULL,          -- who may answer: user:NAME or agent:NAME; []: any person
    fallback TEXT,                      -- answer that applies at the deadline; null: none
    effect TEXT,                        -- complete description of what the answer causes
    required_votes {integer} NOT NULL   -- how many people must give the same answer
        DEFAULT 1 CHECK (required_votes >= 1),
    votes {json} NOT NULL               -- votes so far, where several are required
        DEFAULT '[]',
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'answered', 'expired', 'withdrawn')),
    answer TEXT,                        -- the answer, or the fallback
    answered_by {key},                  -- who answered
    deadline_at {integer} NOT NULL,     -- time from which answers are rejected
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time of the answer, expiry or withdrawal
    imported_at {integer},              -- time of the import; null: not imported
    correlation_id {key},               -- letter chain that its letters continue; null: created by a person
    hops {integer},                     -- agent letters that led to the asking run; null: created by a person
    CHECK ((ended_at IS NULL) = (state = 'open'))
) {strict};

CREATE INDEX questions_open ON questions (id) WHERE state = 'open';
CREATE INDEX questions_due ON questions (deadline_at, id) WHERE state = 'open';
CREATE INDEX questions_by_asker ON questions (asker, id);
CREATE INDEX questions_open_by_asker ON questions (asker, id) WHERE state = 'open';
CREATE INDEX questions_by_project ON questions (project_id, id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX questions_by_key ON questions (asker, key) WHERE key IS NOT NULL;
