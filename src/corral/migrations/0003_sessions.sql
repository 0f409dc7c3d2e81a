-- Lasting identities of agents; what they are told stands in their versions. Writer: agents.
CREATE TABLE agents (
    id {key} PRIMARY KEY,               -- agt_…
    name {key} NOT NULL UNIQUE,         -- what people and other agents call it
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'retired')),
    version {integer} NOT NULL,         -- the number of its current version
    admin {integer} NOT NULL            -- 1: it may change Corral itself
        CHECK (admin IN (0, 1)),
    created_at {integer} NOT NULL,      -- when it was made
    updated_at {integer} NOT NULL       -- last change of version, state or rights
) {strict};

CREATE INDEX agents_active ON agents (name) WHERE state = 'active';

-- What an agent was at some time; a row is never changed, so a run always shows what it used. Writer: agents.
CREATE TABLE agent_versions (
    agent_id {key} NOT NULL,            -- the agent
    number {integer} NOT NULL,          -- from 1, without gaps
    role {key},                         -- what it is for: builder, reviewer, or a word of the user's
    provider {key},                     -- the kind of its program: claude, codex …
    model TEXT,                         -- the model it asks for
    command TEXT,                       -- the program that is run, for an agent without a provider
    instructions TEXT,                  -- what it is told before anything else
    workspace TEXT,                     -- the folder that is its own
    limits {json} NOT NULL,             -- what it may spend and how long it may take
    hash {key} NOT NULL,                -- SHA-256 of all of the above
    created_at {integer} NOT NULL,      -- when it became the current one
    created_by TEXT NOT NULL,           -- who wrote it
    PRIMARY KEY (agent_id, number)
) {strict};

-- Tools that an agent may use, and those that it may not. Writer: agents.
CREATE TABLE grants (
    agent_id {key} NOT NULL,            -- the agent
    tool {key} NOT NULL,                -- a tool's name or a pattern: Bash(git *), mcp__*
    allowed {integer} NOT NULL          -- 1: it may, 0: it may not, whatever else allows it
        CHECK (allowed IN (0, 1)),
    updated_at {integer} NOT NULL,      -- when that was last said
    updated_by TEXT NOT NULL,           -- by whom
    PRIMARY KEY (agent_id, tool)
) {strict};

-- Conversations of agents. Writer: sessions.
CREATE TABLE sessions (
    id {key} PRIMARY KEY,               -- ses_…
    title TEXT,                         -- for people
    project_id {key},                   -- the project that it belongs to, if any
    agent_id {key},                     -- the agent that has it now, if any
    provider {key},                     -- the kind of program that has it now
    provider_session {key},             -- that program's own id of it; null: the next run starts afresh
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'closed')),
    turns {integer} NOT NULL,           -- how many turns it has, those that a fork inherited included
    cleared_turn {integer} NOT NULL,    -- the last turn before it was last cleared; 0: never
    handoff {integer},                  -- the number of the hand-off in force; null: none since it was cleared
    parent_id {key},                    -- the session that it was forked from
    parent_turn {integer} NOT NULL,     -- the last turn that it has from there; 0: no fork
    reply_to {key},                     -- the mailbox that answers go to
    created_at {integer} NOT NULL,      -- when it was opened
    updated_at {integer} NOT NULL,      -- last turn or other change
    closed_at {integer},                -- when it was closed
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    replaced_by {key},                  -- the session that receives its letters after it was closed; null: none
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

-- What was said in a session, in order; only ever added to. Writer: sessions.
CREATE TABLE turns (
    seq {serial},                       -- order of arrival in the store; the public id is trn_184
    session_id {key} NOT NULL,          -- the session; empty: holds the place of a number given out
    number {integer} NOT NULL,          -- its place in the session, from 1, without gaps
    role {key} NOT NULL                 -- who speaks
        CHECK (role IN ('user', 'assistant', 'system', 'tool')),
    content TEXT NOT NULL,              -- the words
    tool_call_id TEXT,                  -- the provider's id of a call of a tool, and of its answer
    tool_name TEXT,                     -- the tool that is called, or that answers
    arguments {json},                   -- what a tool is called with
    result {json},                      -- what a tool answered
    is_error {integer} NOT NULL         -- 1: the tool failed
        CHECK (is_error IN (0, 1)),
    input_tokens {integer},             -- what it cost to read; null: not known
    output_tokens {integer},            -- what it cost to write; null: not known
    agent_id {key},                     -- the agent whose words these are
    run_id {key},                       -- the run that made it
    key {key},                          -- the same key in the same session is the same turn
    meta {json},                        -- what else its writer wants to keep
    at {integer} NOT NULL               -- when it was appended
) {strict};

CREATE UNIQUE INDEX turns_by_number ON turns (session_id, number);
CREATE UNIQUE INDEX turns_by_key ON turns (session_id, key) WHERE key IS NOT NULL;
{turns_keep_newest};

-- Values that a session remembers between its runs. Writer: sessions.
CREATE TABLE session_state (
    session_id {key} NOT NULL,          -- the session
    name {key} NOT NULL,                -- the value's name
    value {json} NOT NULL,              -- the value
    updated_at {integer} NOT NULL,      -- when it was last set
    PRIMARY KEY (session_id, name)
) {strict};

-- Sessions that went from one agent to another, and how much the new one is given. Writer: sessions.
CREATE TABLE handoffs (
    session_id {key} NOT NULL,          -- the session
    number {integer} NOT NULL,          -- from 1, without gaps
    from_agent_id {key},                -- who had it; null: nobody
    to_agent_id {key} NOT NULL,         -- who has it since
    policy {key} NOT NULL               -- what the new one is given: all turns, the last ones, a summary
        CHECK (policy IN ('all', 'last', 'summary')),
    last_n {integer},                   -- how many, where it is the last ones
    note TEXT,                          -- what the new one is told besides
    summary TEXT,                       -- what happened so far, in short
    at_turn {integer} NOT NULL,         -- the last turn before it
    from_turn {integer} NOT NULL,       -- the new one is given the turns behind this one
    run_id {key},                       -- the run that handed it over
    created_at {integer} NOT NULL,      -- when
    PRIMARY KEY (session_id, number)
) {strict};

-- Looks back at sessions: what happened, time, cost, files, failures. Writer: sessions.
CREATE TABLE retros (
    session_id {key} NOT NULL,          -- the session
    number {integer} NOT NULL,          -- from 1, without gaps
    body {json} NOT NULL,               -- what was found
    created_at {integer} NOT NULL,      -- when
    PRIMARY KEY (session_id, number)
) {strict};

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
