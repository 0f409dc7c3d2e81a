-- Full-text index, filled asynchronously. Writer: search.
CREATE TABLE passages (
    seq {serial},                       -- order of insertion; newest are found first
    {passage_words}
    kind {key} NOT NULL                 -- source of the text
        CHECK (kind IN ('turn', 'output', 'note')),
    subject {key} NOT NULL,             -- id of the session, run or note
    location {integer} NOT NULL,        -- position in the subject: number of the turn, or line
    project_id {key},                   -- the project, if any
    at {integer} NOT NULL,              -- time of the text
    text TEXT NOT NULL,                 -- searchable text
    folded TEXT                         -- its words in lower case; null: plain ASCII, which the engines fold
) {strict};

{passages_index};
{passages_added};
{passages_removed};
CREATE INDEX passages_by_subject ON passages (subject, kind);

-- Progress of the indexing of `passages`. Writer: search.
CREATE TABLE search_cursors (
    source {key} PRIMARY KEY,           -- indexed source: turns
    seq {integer} NOT NULL,             -- indexed up to this seq
    ahead {integer} NOT NULL,           -- highest seq when `ahead_xid` was read
    ahead_xid {integer} NOT NULL        -- transactions below this id may still insert rows up to `ahead`
) {strict};
