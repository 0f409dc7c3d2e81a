-- States of programs that a framework runs step by step, each as it was after a step. Writer: checkpoints.
CREATE TABLE checkpoints (
    seq {serial},                       -- order of arrival
    thread {key} NOT NULL,              -- the framework's name of the conversation or the work
    ns {key} NOT NULL,                  -- the part of the program; empty: the whole
    id {key} NOT NULL,                  -- the framework's id of it; later ones sort behind
    parent {key},                       -- the checkpoint that it came from; null: the first
    format {key} NOT NULL,              -- how the framework wrote the state
    body {blob} NOT NULL,               -- the state, as the framework wrote it
    metadata {json} NOT NULL,           -- what the framework says of it
    caller {key},                       -- the framework's id of the call that made it
    at {integer} NOT NULL               -- when it was kept
) {strict};

CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (thread, ns, id);
CREATE INDEX checkpoints_by_thread ON checkpoints (thread, seq);
CREATE INDEX checkpoints_by_caller ON checkpoints (caller) WHERE caller IS NOT NULL;

-- What parts of a step have done before all of it was: they are not done again. Writer: checkpoints.
CREATE TABLE checkpoint_writes (
    seq {serial},                       -- order of arrival
    thread {key} NOT NULL,              -- the thread
    ns {key} NOT NULL,                  -- the part of the program
    checkpoint {key} NOT NULL,          -- the checkpoint that the step began with
    task {key} NOT NULL,                -- the framework's id of the part of the step
    place {integer} NOT NULL,           -- its place among the writes of that part; below 0: a note on the part itself
    path {key} NOT NULL,                -- where the part stands in the step; its writes are in this order
    channel {key} NOT NULL,             -- what is written to
    format {key} NOT NULL,              -- how the framework wrote the value
    value {blob} NOT NULL,              -- the value, as the framework wrote it
    at {integer} NOT NULL               -- when it was kept
) {strict};

CREATE UNIQUE INDEX checkpoint_writes_by_place ON checkpoint_writes (thread, ns, checkpoint, task, place);

-- The last move of this store's content; at most one row. Writer: db.
CREATE TABLE store_moves (
    one {integer} PRIMARY KEY CHECK (one = 1),  -- always 1: the table has at most one row
    phase {key} NOT NULL                -- leaving: fenced and being copied; gone; arriving; arrived; excerpt: the export of a project
        CHECK (phase IN ('leaving', 'gone', 'arriving', 'arrived', 'excerpt')),
    url TEXT NOT NULL,                  -- the other store, without password
    move_id {key} NOT NULL,             -- id of the move, the same in both stores; empty: cancelled
    copied_rows {json} NOT NULL,        -- arriving: number of rows copied so far, by table
    started_at {integer} NOT NULL       -- when it began
) {strict};
