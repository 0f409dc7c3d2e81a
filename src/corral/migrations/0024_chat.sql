-- Connected chat platforms; each account of a platform is one row. Writer: chat.
CREATE TABLE channels (
    id {key} PRIMARY KEY,               -- chn_…
    name {key} NOT NULL,                -- name in commands and mailboxes
    kind {key} NOT NULL,                -- adapter: terminal, web, webhook, matrix, slack, telegram …
    policy {key} NOT NULL               -- messages of unknown senders: strict rejects, ask holds them for an owner, public routes them
        CHECK (policy IN ('strict', 'ask', 'public')),
    on_unconfirmed {key} NOT NULL       -- messages whose delivery is unconfirmed: give_up or retry
        CHECK (on_unconfirmed IN ('give_up', 'retry')),
    config {json} NOT NULL,             -- options of the adapter; never a secret
    secrets {json} NOT NULL,            -- names of the adapter's secrets, each with a reference to a stored secret
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'removed')),
    cursor TEXT,                        -- the platform's position up to which all events are stored
    last_error TEXT,                    -- error of the last connection check; null: it succeeded
    checked_at {integer},               -- time of the last connection check
    created_at {integer} NOT NULL,      -- time of creation
    created_by {key} NOT NULL,          -- who added it
    ended_at {integer},                 -- when it was removed
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE UNIQUE INDEX channels_by_name ON channels (name) WHERE state = 'active';

-- Chats on a channel: rooms, direct messages, terminals. Writer: chat.
CREATE TABLE places (
    id {key} PRIMARY KEY,               -- plc_…; the mailbox of outbound messages is place:plc_…
    channel_id {key} NOT NULL,          -- its channel
    platform_id {key} NOT NULL,         -- the platform's id of the chat
    name TEXT,                          -- the platform's name of the chat
    direct {integer} NOT NULL           -- 1: one person and the agents
        CHECK (direct IN (0, 1)),
    policy {key}                        -- overrides the channel's policy; null: the channel's
        CHECK (policy IN ('strict', 'ask', 'public')),
    awaits_secret {integer} NOT NULL    -- 1: a secret is being asked for there; text that may be one is not stored
        DEFAULT 0 CHECK (awaits_secret IN (0, 1)),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'blocked')),
    created_at {integer} NOT NULL,      -- time of creation
    updated_at {integer} NOT NULL,      -- when it last changed
    UNIQUE (channel_id, platform_id)
) {strict};

-- People, independent of their accounts on channels. Writer: chat.
CREATE TABLE people (
    name {key} PRIMARY KEY,             -- the person acts as user:NAME
    role {key} NOT NULL                 -- owner: everything; admin: approve senders, control agents; member: talk to agents
        CHECK (role IN ('owner', 'admin', 'member')),
    created_at {integer} NOT NULL,      -- time of creation
    updated_at {integer} NOT NULL       -- when the role last changed
) {strict};

-- Accounts that write on a channel, and the people they belong to. Writer: chat.
CREATE TABLE senders (
    id {key} PRIMARY KEY,               -- snd_…
    channel_id {key} NOT NULL,          -- the channel
    platform_id {key} NOT NULL,         -- the platform's id of the account
    name TEXT,                          -- the account's display name
    person {key},                       -- the person; null: not known
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('unknown', 'known', 'blocked')),
    created_at {integer} NOT NULL,      -- time of creation
    updated_at {integer} NOT NULL,      -- when it last changed
    UNIQUE (channel_id, platform_id),
    CHECK (state <> 'known' OR person IS NOT NULL)
) {strict};

-- Which agent receives the messages of which chats, and when it answers. Writer: chat.
CREATE TABLE wirings (
    id {key} PRIMARY KEY,               -- wir_…
    channel_id {key} NOT NULL,          -- the channel
    place_id {key},                     -- the chat; null: all chats of the channel
    agent_id {key} NOT NULL,            -- the agent that listens
    trigger {key} NOT NULL              -- which messages wake the agent
        CHECK (trigger IN ('always', 'mention', 'sticky', 'pattern', 'command')),
    pattern TEXT,                       -- the regular expression, or the name of the command
    scope {key} NOT NULL                -- whose messages wake the agent: all admitted senders, or known people
        CHECK (scope IN ('all', 'known')),
    unmatched {key} NOT NULL            -- messages that do not wake the agent: drop, or keep as context of the next one
        CHECK (unmatched IN ('drop', 'keep')),
    mode {key} NOT NULL                 -- which messages share a session: of a chat, a thread, or all of the agent
        CHECK (mode IN ('shared', 'thread', 'agent')),
    priority {integer} NOT NULL,        -- wirings are tried in descending priority
    project_id {key},                   -- the project the agent works in; null: its own folder
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'removed')),
    created_at {integer} NOT NULL,      -- time of creation
    created_by {key} NOT NULL,          -- who added it
    ended_at {integer},                 -- when it was removed
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE UNIQUE INDEX wirings_once ON wirings (channel_id, coalesce(place_id, ''), agent_id)
    WHERE state = 'active';

-- Chats that an agent may send to, under its own names: address book and permission. Writer: chat.
CREATE TABLE destinations (
    id {key} PRIMARY KEY,               -- dst_…
    agent_id {key} NOT NULL,            -- the agent that may send
    name {key} NOT NULL,                -- the agent's name of the chat
    place_id {key} NOT NULL,            -- the chat
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('granted', 'revoked')),
    created_at {integer} NOT NULL,      -- time of the grant
    created_by {key} NOT NULL,          -- who granted it
    ended_at {integer},                 -- when it was revoked
    UNIQUE (agent_id, place_id),
    CHECK ((ended_at IS NULL) = (state = 'granted'))
) {strict};

CREATE UNIQUE INDEX destinations_by_name ON destinations (agent_id, name) WHERE state = 'granted';

-- Inbound and outbound messages of channels. The letter of an outbound message has its delivery state.
-- Writer: chat.
CREATE TABLE messages (
    seq {serial},                       -- order of storage; the public id is msg_7
    channel_id {key} NOT NULL,          -- the channel
    place_id {key} NOT NULL,            -- the chat
    thread {key},                       -- the platform's id of the thread; null: none
    direction {key} NOT NULL            -- in: from the platform; out: to the platform
        CHECK (direction IN ('in', 'out')),
    kind {key} NOT NULL                 -- edit and reaction refer to an earlier message; question: a card; answer: a button press
        CHECK (kind IN ('text', 'file', 'edit', 'reaction', 'question', 'answer')),
    event_id {key} NOT NULL,            -- in:ID with the platform's event id, or out:KEY with the sender's key
    platform_ids {json} NOT NULL,       -- the platform's ids of the message, one for each part
    reply_to {key},                     -- the platform's id of the message it answers, edits or reacts to
    sender_id {key},                    -- inbound: the account that wrote it
    agent_id {key},                     -- outbound: the agent that sent it; null: Corral itself
    run_id {key},                       -- outbound: the run that sent it; null: none
    text TEXT NOT NULL,                 -- the text
    data {json},                        -- files, options, mentions
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('held', 'routed', 'ignored', 'refused', 'queued', 'sent', 'undelivered')),
    reason TEXT,                        -- why it is in this state
    routes {json} NOT NULL,             -- the result of each wiring: agent, session, whether it wakes the agent, and why
    letter_id {integer},                -- outbound: the number of its letter
    at {integer} NOT NULL,              -- when it was written
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- when it reached a final state
    CHECK ((ended_at IS NULL) = (state IN ('held', 'queued')))
) {strict};

CREATE UNIQUE INDEX messages_by_event ON messages (channel_id, event_id);
CREATE INDEX messages_by_place ON messages (place_id, seq);
CREATE INDEX messages_held_by_sender ON messages (sender_id, seq) WHERE state = 'held';
CREATE INDEX messages_held_by_place ON messages (place_id, seq) WHERE state = 'held';
CREATE INDEX messages_queued ON messages (seq) WHERE state = 'queued';
CREATE INDEX messages_queued_by_place ON messages (place_id, seq) WHERE state = 'queued';
CREATE INDEX messages_by_run ON messages (run_id) WHERE run_id IS NOT NULL;
{messages_keep_newest};

-- The session of an agent for a chat or thread, and the run that works on its letters. Writer: chat.
CREATE TABLE conversations (
    session_id {key} PRIMARY KEY,       -- the session; its mailbox is session:ses_…
    agent_id {key} NOT NULL,            -- the agent
    place_id {key} NOT NULL,            -- the chat; empty: all chats of the agent
    thread {key} NOT NULL,              -- the thread; empty: the whole chat
    run_id {key},                       -- the run of the current turn; null: none
    claimed_letters {json} NOT NULL,    -- the letters of the current turn, each with the fence of its claim
    seen_seq {integer} NOT NULL,        -- number of the last message that the agent was given
    ingested_seq {integer} NOT NULL     -- sandboxed agent: number of the last message ingested from its file
        DEFAULT 0,
    created_at {integer} NOT NULL,      -- time of creation
    UNIQUE (agent_id, place_id, thread)
) {strict};

CREATE INDEX conversations_by_place ON conversations (place_id) WHERE place_id <> '';
CREATE INDEX conversations_busy ON conversations (run_id) WHERE run_id IS NOT NULL;

-- Outcomes of messages from sandboxed agents, until the session's file shows them. Writer: chat.
CREATE TABLE sandbox_outcomes (
    id {key} PRIMARY KEY,               -- out_…
    session_id {key} NOT NULL,          -- the session
    out_id {key} NOT NULL,              -- the file's id of the message
    message_id {integer},               -- number of the message that was queued; null: none
    question_id {key},                  -- the question that was asked; null: none
    reason TEXT,                        -- why it was rejected; null: it was accepted
    created_at {integer} NOT NULL       -- time of the ingestion
) {strict};

CREATE UNIQUE INDEX sandbox_outcomes_of_session ON sandbox_outcomes (session_id, out_id);

-- Questions that are shown in a chat. Writer: chat.
CREATE TABLE question_cards (
    question_id {key} PRIMARY KEY,      -- the question
    place_id {key} NOT NULL,            -- the chat that shows it
    session_id {key},                   -- the session that asked; null: none
    message_id {integer} NOT NULL,      -- number of the message that shows it
    secret {integer} NOT NULL           -- 1: it asks for a secret
        DEFAULT 0 CHECK (secret IN (0, 1)),
    closed {integer} NOT NULL           -- 1: the card shows the outcome, and the asker was notified
        CHECK (closed IN (0, 1)),
    created_at {integer} NOT NULL       -- time of creation
) {strict};

CREATE INDEX question_cards_open ON question_cards (place_id) WHERE closed = 0;
