-- Conversations of agents. Writer: sessions.
CREATE TABLE sessions (
    id {key} PRIMARY KEY,               -- ses_…
    title TEXT,                         -- display title
    project_id {key},                   -- the project; null: none
    agent_id {key},                     -- current agent; null: none
    provider {key},                     -- kind of agent CLI that continues the session
    provider_session {key},             -- the provider's session id; null: the next run starts a new one
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'closed')),
    turns {integer} NOT NULL,           -- number of the latest turn, including turns inherited by a fork
    cleared_turn {integer} NOT NULL,    -- latest turn at the last clear; 0: never cleared
    handoff {integer},                  -- number of the hand-off in effect; null: none since the last clear
    parent_id {key},                    -- the session that it was forked from; null: not a fork
    parent_turn {integer} NOT NULL,     -- latest turn inherited from the parent; 0: not a fork
    reply_to {key},                     -- mailbox that gets the answers
    created_at {integer} NOT NULL,      -- time of creation
    updated_at {integer} NOT NULL,      -- last turn or other change
    closed_at {integer},                -- closing time
    imported_at {integer},              -- time of the import; null: not imported
    replaced_by {key},                  -- session that receives its letters after it is closed; null: none
    CHECK ((closed_at IS NULL) = (state = 'open'))
) {strict};

CREATE INDEX sessions_open ON sessions (id) WHERE state = 'open';
CREATE INDEX sessions_by_project ON sessions (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX sessions_open_by_project ON sessions (project_id, id)
    WHERE state = 'open' AND project_id IS NOT NULL;
CREATE INDEX sessions_by_agent ON sessions (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX sessions_open_by_agent ON sessions (agent_id, id)
    WHERE state = 'open' AND agent_id IS NOT NULL;
CREATE INDEX sessions_by_provider ON sessions (provider_session, provider, id)
    WHERE provider_session IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sessions_closed ON sessions (closed_at, id, imported_at) WHERE closed_at IS NOT NULL;

-- Messages of sessions, append-only. Writer: sessions.
CREATE TABLE turns (
    seq {serial},                       -- insertion order in the store; the public id is trn_184
    session_id {key} NOT NULL,          -- the session; empty: placeholder that keeps the highest seq from being reused
    number {integer} NOT NULL,          -- position in the session, from 1, without gaps
    role {key} NOT NULL                 -- author of the message
        CHECK (role IN ('user', 'assistant', 'system', 'tool')),
    content TEXT NOT NULL,              -- text of the message
    tool_call_id TEXT,                  -- the provider's id of a tool call and its result
    tool_name TEXT,                     -- the called tool
    arguments {json},                   -- arguments of the tool call
    result {json},                      -- result of the tool call
    is_error {integer} NOT NULL         -- 1: the tool call failed
        CHECK (is_error IN (0, 1)),
    input_tokens {integer},             -- tokens read; null: not known
    output_tokens {integer},            -- tokens written; null: not known
    agent_id {key},                     -- agent of the turn; null: none
    run_id {key},                       -- run that appended it; null: none
    key {key},                          -- idempotency key, unique in the session
    meta {json},                        -- any metadata of the writer
    at {integer} NOT NULL               -- time of the turn
) {strict};

CREATE UNIQUE INDEX turns_by_number ON turns (session_id, number);
CREATE UNIQUE INDEX turns_by_key ON turns (session_id, key) WHERE key IS NOT NULL;
{turns_keep_newest};

-- Named values that a session keeps between runs. Writer: sessions.
CREATE TABLE session_state (
    session_id {key} NOT NULL,          -- the session
    name {key} NOT NULL,                -- name of the value
    value {json} NOT NULL,              -- the value
    updated_at {integer} NOT NULL,      -- time of the last change
    PRIMARY KEY (session_id, name)
) {strict};

-- Transfers of sessions between agents. Writer: sessions.
CREATE TABLE handoffs (
    session_id {key} NOT NULL,          -- the session
    number {integer} NOT NULL,          -- from 1, without gaps
    from_agent_id {key},                -- previous agent; null: none
    to_agent_id {key} NOT NULL,         -- new agent
    policy {key} NOT NULL               -- context of the new agent: all turns, the last n, or a summary
        CHECK (policy IN ('all', 'last', 'summary')),
    last_n {integer},                   -- number of turns of the policy last
    note TEXT,                          -- note for the new agent
    summary TEXT,                       -- summary of the session so far
    at_turn {integer} NOT NULL,         -- latest turn before the hand-off
    from_turn {integer} NOT NULL,       -- the new agent gets the turns after this one
    run_id {key},                       -- run that made the hand-off; null: none
    created_at {integer} NOT NULL,      -- time of the hand-off
    PRIMARY KEY (session_id, number)
) {strict};

-- Retrospectives of sessions: time, cost, files, failures. Writer: sessions.
CREATE TABLE retros (
    session_id {key} NOT NULL,          -- the session
    number {integer} NOT NULL,          -- from 1, without gaps
    body {json} NOT NULL,               -- the retrospective
    created_at {integer} NOT NULL,      -- time of creation
    PRIMARY KEY (session_id, number)
) {strict};
