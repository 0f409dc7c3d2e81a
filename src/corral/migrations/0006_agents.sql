-- Named identities of agents; their content is in agent_versions. Writer: agents.
CREATE TABLE agents (
    id {key} PRIMARY KEY,               -- agt_…
    name {key} NOT NULL UNIQUE,         -- unique name
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'retired')),
    version {integer} NOT NULL,         -- number of the current version
    admin {integer} NOT NULL            -- 1: may change the configuration of Corral
        CHECK (admin IN (0, 1)),
    created_at {integer} NOT NULL,      -- time of creation
    updated_at {integer} NOT NULL       -- last change of version, state or admin
) {strict};

CREATE INDEX agents_active ON agents (name) WHERE state = 'active';

-- Immutable versions of agents, so that a run always shows what it used. Writer: agents.
CREATE TABLE agent_versions (
    agent_id {key} NOT NULL,            -- the agent
    number {integer} NOT NULL,          -- from 1, without gaps
    role {key},                         -- purpose: builder, reviewer, or any word
    provider {key},                     -- kind of agent CLI: claude, codex …
    model TEXT,                         -- requested model
    command TEXT,                       -- program of an agent without a provider
    instructions TEXT,                  -- system instructions
    workspace TEXT,                     -- the agent's own directory
    limits {json} NOT NULL,             -- limits of cost, time and concurrency
    hash {key} NOT NULL,                -- SHA-256 of the content
    created_at {integer} NOT NULL,      -- time of creation
    created_by TEXT NOT NULL,           -- actor that created it
    PRIMARY KEY (agent_id, number)
) {strict};

-- Tools that an agent may or may not use. Writer: agents.
CREATE TABLE tool_grants (
    agent_id {key} NOT NULL,            -- the agent
    tool {key} NOT NULL,                -- name or pattern of a tool: Bash(git *), mcp__*
    allowed {integer} NOT NULL          -- 1: allowed; 0: denied, which overrides every permission
        CHECK (allowed IN (0, 1)),
    updated_at {integer} NOT NULL,      -- time of the last change
    updated_by TEXT NOT NULL,           -- actor of the last change
    PRIMARY KEY (agent_id, tool)
) {strict};
