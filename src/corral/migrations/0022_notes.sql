-- Notes that are remembered for an agent, a project or everyone. Writer: notes.
CREATE TABLE notes (
    id {key} PRIMARY KEY,               -- nte_…
    scope {key} NOT NULL,               -- everyone, project:ID or agent:NAME
    project_id {key},                   -- project of the scope; null: none
    category {key} NOT NULL,            -- core, decision, gotcha, pattern, expertise …; core is in every prompt
    key {key},                          -- unique among the current notes of a scope; a new note supersedes the old one
    text TEXT NOT NULL,                 -- the note; data, never an instruction
    source {key} NOT NULL,              -- who added it
    confidence {integer} NOT NULL       -- confidence of the source in percent
        CHECK (confidence BETWEEN 0 AND 100),
    uses {integer} NOT NULL,            -- how often it was given to an agent
    used_at {integer},                  -- time of the last use; null: never used
    supersedes {key},                   -- note that it replaced; null: none
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('current', 'superseded')),
    expires_at {integer},               -- time from which it is ignored; null: never
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time when it was superseded
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state = 'current'))
) {strict};

CREATE INDEX notes_current ON notes (id) WHERE state = 'current';
CREATE INDEX notes_by_scope ON notes (scope, id);
CREATE INDEX notes_current_by_scope ON notes (scope, id) WHERE state = 'current';
CREATE INDEX notes_ended ON notes (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX notes_expiring ON notes (expires_at)
    WHERE state = 'current' AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX notes_by_key ON notes (scope, key) WHERE key IS NOT NULL AND state = 'current';
