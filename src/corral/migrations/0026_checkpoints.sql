-- States of agent frameworks (langgraph), one after each step of a thread. Writer: checkpoints.
CREATE TABLE checkpoints (
    seq {serial},                       -- insertion order
    thread {key} NOT NULL,              -- the framework's thread id
    ns {key} NOT NULL,                  -- namespace of a subgraph; empty: the root graph
    id {key} NOT NULL,                  -- the framework's checkpoint id; ids sort by time
    parent {key},                       -- id of the previous checkpoint; null: the first
    format {key} NOT NULL,              -- serialization format of body
    body {blob} NOT NULL,               -- serialized state
    metadata {json} NOT NULL,           -- metadata of the framework
    caller {key},                       -- the framework's id of the call that created it
    at {integer} NOT NULL               -- time of saving
) {strict};

CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (thread, ns, id);
CREATE INDEX checkpoints_by_thread ON checkpoints (thread, seq);
CREATE INDEX checkpoints_by_caller ON checkpoints (caller) WHERE caller IS NOT NULL;

-- Results of finished tasks of an unfinished step, which are not executed again. Writer: checkpoints.
CREATE TABLE checkpoint_writes (
    seq {serial},                       -- insertion order
    thread {key} NOT NULL,              -- the framework's thread id
    ns {key} NOT NULL,                  -- namespace of a subgraph; empty: the root graph
    checkpoint {key} NOT NULL,          -- checkpoint that the step started from
    task {key} NOT NULL,                -- the framework's task id
    position {integer} NOT NULL,        -- position among the writes of the task; negative: a special write such as an error
    path {key} NOT NULL,                -- path of the task in the step; writes are applied in this order
    channel {key} NOT NULL,             -- channel that is written to
    format {key} NOT NULL,              -- serialization format of value
    value {blob} NOT NULL,              -- serialized value
    at {integer} NOT NULL               -- time of saving
) {strict};

CREATE UNIQUE INDEX checkpoint_writes_by_position ON checkpoint_writes (thread, ns, checkpoint, task, position);
