-- Connected chat platforms; several of one kind are several rows. Writer: gateway.
CREATE TABLE channels (
    id {key} PRIMARY KEY,               -- chn_…
    name {key} NOT NULL,                -- what people call it
    kind {key} NOT NULL,                -- which adapter speaks to it: terminal, webhook, matrix …
    policy {key} NOT NULL               -- what becomes of strangers: turned away, an owner is asked, let in
        CHECK (policy IN ('strict', 'ask', 'public')),
    in_doubt {key} NOT NULL             -- a message of which nobody can say whether it arrived
        CHECK (in_doubt IN ('give_up', 'retry')),
    config {json} NOT NULL,             -- addresses and choices of its kind; never a secret
    secrets {json} NOT NULL,            -- where its secrets are, by their names
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'removed')),
    cursor TEXT,                        -- how far it was read, in the platform's own words
    trouble TEXT,                       -- why it could not be reached when it was last looked at; null: it could
    looked_at {integer},                -- when that was
    created_at {integer} NOT NULL,      -- when it was added
    created_by {key} NOT NULL,          -- by whom
    ended_at {integer},                 -- when it was removed
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE UNIQUE INDEX channels_by_name ON channels (name) WHERE state = 'active';

-- Chats on a channel: rooms, direct messages, terminals. Writer: gateway.
CREATE TABLE places (
    id {key} PRIMARY KEY,               -- plc_…; what goes there is in the mailbox place:plc_…
    channel_id {key} NOT NULL,          -- its channel
    platform_id {key} NOT NULL,         -- what the platform calls it
    name TEXT,                          -- what people call it
    direct {integer} NOT NULL           -- 1: one person and the agents
        CHECK (direct IN (0, 1)),
    policy {key}                        -- another than its channel's
        CHECK (policy IN ('strict', 'ask', 'public')),
    guarded {integer} NOT NULL          -- 1: a secret is asked for there, which must not be typed there
        DEFAULT 0 CHECK (guarded IN (0, 1)),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'blocked')),
    created_at {integer} NOT NULL,      -- when it was first heard of
    updated_at {integer} NOT NULL,      -- when it last changed
    UNIQUE (channel_id, platform_id)
) {strict};

-- People, whatever they are called on any channel. Writer: gateway.
CREATE TABLE people (
    name {key} PRIMARY KEY,             -- stands as user:NAME wherever they act
    role {key} NOT NULL                 -- owner, admin: may let others in and steer agents; member: may talk
        CHECK (role IN ('owner', 'admin', 'member')),
    created_at {integer} NOT NULL,      -- when they became known
    updated_at {integer} NOT NULL       -- when that last changed
) {strict};

-- Accounts that speak on a channel, and who is behind them. Writer: gateway.
CREATE TABLE senders (
    id {key} PRIMARY KEY,               -- snd_…
    channel_id {key} NOT NULL,          -- the channel
    platform_id {key} NOT NULL,         -- what the platform calls the account
    name TEXT,                          -- what it shows
    person {key},                       -- who it is; null: nobody knows
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('unknown', 'known', 'blocked')),
    created_at {integer} NOT NULL,      -- when it first spoke
    updated_at {integer} NOT NULL,      -- when it last changed
    UNIQUE (channel_id, platform_id),
    CHECK (state <> 'known' OR person IS NOT NULL)
) {strict};

-- Which agent hears which chats, and when it answers. Writer: gateway.
CREATE TABLE wirings (
    id {key} PRIMARY KEY,               -- wir_…
    channel_id {key} NOT NULL,          -- the channel
    place_id {key},                     -- the one chat; null: all of the channel
    agent_id {key} NOT NULL,            -- who hears it
    trigger {key} NOT NULL              -- what wakes the agent
        CHECK (trigger IN ('always', 'mention', 'sticky', 'pattern', 'command')),
    pattern TEXT,                       -- the pattern, or the command's word
    scope {key} NOT NULL                -- whom it listens to: everybody who may talk, or people we know
        CHECK (scope IN ('all', 'known')),
    unheard {key} NOT NULL              -- what does not wake it: is told with the next message, or never
        CHECK (unheard IN ('drop', 'keep')),
    mode {key} NOT NULL                 -- one session a chat, one a thread, or one for the agent
        CHECK (mode IN ('shared', 'thread', 'agent')),
    priority {integer} NOT NULL,        -- higher is asked first
    project_id {key},                   -- where the agent works; null: in its own folder
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'removed')),
    created_at {integer} NOT NULL,      -- when it was added
    created_by {key} NOT NULL,          -- by whom
    ended_at {integer},                 -- when it was removed
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE UNIQUE INDEX wirings_once ON wirings (channel_id, coalesce(place_id, ''), agent_id)
    WHERE state = 'active';

-- Where agents may send to, each by a name of its own: address book and permission. Writer: gateway.
CREATE TABLE destinations (
    id {key} PRIMARY KEY,               -- dst_…
    agent_id {key} NOT NULL,            -- who may send
    name {key} NOT NULL,                -- what that agent calls it
    place_id {key} NOT NULL,            -- the chat
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('granted', 'revoked')),
    created_at {integer} NOT NULL,      -- when it was granted
    created_by {key} NOT NULL,          -- by whom
    ended_at {integer},                 -- when it was revoked
    UNIQUE (agent_id, place_id),
    CHECK ((ended_at IS NULL) = (state = 'granted'))
) {strict};

CREATE UNIQUE INDEX destinations_by_name ON destinations (agent_id, name) WHERE state = 'granted';

-- What was said on channels, both ways. What goes out has a letter, which tells how far it is.
-- Writer: gateway.
CREATE TABLE messages (
    seq {serial},                       -- order of arrival; the public id is msg_7
    channel_id {key} NOT NULL,          -- the channel
    place_id {key} NOT NULL,            -- the chat
    thread {key},                       -- the thread in it, as the platform calls it
    direction {key} NOT NULL            -- in: from the platform; out: to it
        CHECK (direction IN ('in', 'out')),
    kind {key} NOT NULL                 -- words; a file; a change of earlier words; a sign; a card with a question; a choice on one
        CHECK (kind IN ('text', 'file', 'edit', 'reaction', 'question', 'answer')),
    event_id {key} NOT NULL,            -- in: and the platform's id of its event, or out: and its own key
    platform_ids {json} NOT NULL,       -- what the platform calls the message, part by part
    reply_to {key},                     -- the platform's id of the message that it answers, changes or signs
    sender_id {key},                    -- the account that said it, of what came in
    agent_id {key},                     -- the agent that said it, of what goes out; null: Corral itself
    run_id {key},                       -- the run in which it was said
    text TEXT NOT NULL,                 -- the words
    data {json},                        -- files, options, signs
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('held', 'heard', 'unheard', 'refused', 'queued', 'sent', 'undelivered')),
    reason TEXT,                        -- why it is in that state
    routes {json} NOT NULL,             -- which agents heard it, in which session, and why
    letter {integer},                   -- of what goes out: the number of its letter
    at {integer} NOT NULL,              -- when it was said
    created_at {integer} NOT NULL,      -- when it was stored
    ended_at {integer},                 -- when its fate was known
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

-- Which session an agent has for a chat or thread, and the run that works on its letters. Writer: gateway.
CREATE TABLE talks (
    session_id {key} PRIMARY KEY,       -- the session; its mailbox is session:ses_…
    agent_id {key} NOT NULL,            -- whose
    place_id {key} NOT NULL,            -- the chat; empty: all chats of the agent
    thread {key} NOT NULL,              -- the thread; empty: the whole chat
    run_id {key},                       -- the run that has its letters now; null: none
    letters {json} NOT NULL,            -- those letters, each with its fence
    seen {integer} NOT NULL,            -- the number of the last message that it was told
    taken {integer} NOT NULL            -- of a boxed agent: the last number of its file that was taken over
        DEFAULT 0,
    created_at {integer} NOT NULL,      -- when it began
    UNIQUE (agent_id, place_id, thread)
) {strict};

CREATE INDEX talks_by_place ON talks (place_id) WHERE place_id <> '';
CREATE INDEX talks_busy ON talks (run_id) WHERE run_id IS NOT NULL;

-- What boxed agents said, and what became of it, until the file of their session tells them. Writer: gateway.
CREATE TABLE boxed_outcomes (
    id {key} PRIMARY KEY,               -- out_…
    session_id {key} NOT NULL,          -- the session
    out_id {key} NOT NULL,              -- what the file calls the message
    message {integer},                  -- the number of the message that it became; null: of none
    question_id {key},                  -- the question that it asked
    reason TEXT,                        -- why it was refused; null: it was not
    created_at {integer} NOT NULL       -- when it was taken over
) {strict};

CREATE UNIQUE INDEX boxed_outcomes_of_session ON boxed_outcomes (session_id, out_id);

-- Questions that were shown on channels, and where. Writer: gateway.
CREATE TABLE cards (
    question_id {key} PRIMARY KEY,      -- the question
    place_id {key} NOT NULL,            -- where it is shown
    session_id {key},                   -- the session in which it was asked, if it was in one
    message {integer} NOT NULL,         -- the number of the message that shows it
    secret {integer} NOT NULL           -- 1: it asks for a secret
        DEFAULT 0 CHECK (secret IN (0, 1)),
    settled {integer} NOT NULL          -- 1: the card shows how it ended, and the asker has been told
        CHECK (settled IN (0, 1)),
    created_at {integer} NOT NULL       -- when it was shown
) {strict};

CREATE INDEX cards_open ON cards (place_id) WHERE settled = 0;

-- Requests of agents to the host: create an agent, schedule a task, send to a chat, use a secret.
-- Writer: host_requests.
CREATE TABLE host_requests (
    id {key} PRIMARY KEY,               -- req_…
    agent_id {key} NOT NULL,            -- the requesting agent
    run_id {key},                       -- run that requested it; null: not known
    session_id {key},                   -- session that requested it; null: not known
    key {key},                          -- idempotency key, unique per agent
    action {key} NOT NULL,              -- requested action: create_agent, schedule_task …
    arguments {json} NOT NULL,          -- arguments of the action; never the value of a secret
    effect TEXT NOT NULL,               -- complete description of the effect, as shown to the approvers
    question_id {key},                  -- question to the approvers; null: decided by a rule
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('waiting', 'done', 'refused', 'expired', 'failed')),
    decided_by {key},                   -- who approved or refused it; rule: a tool grant or denial
    result {json},                      -- ids and names of what was created
    reason TEXT,                        -- reason of the refusal or failure
    created_at {integer} NOT NULL,      -- creation time
    ended_at {integer},                 -- time of the outcome
    CHECK ((ended_at IS NULL) = (state = 'waiting'))
) {strict};

-- Counts the open requests of an agent at each new request, however many it has made.
CREATE INDEX host_requests_waiting_of_agent ON host_requests (agent_id) WHERE state = 'waiting';

CREATE UNIQUE INDEX host_requests_by_key ON host_requests (agent_id, key) WHERE key IS NOT NULL;
CREATE INDEX host_requests_by_agent ON host_requests (agent_id, id);
CREATE INDEX host_requests_waiting ON host_requests (action, id) WHERE state = 'waiting';

-- Letters between agents: the chain that each belongs to, and its reply address. Writer: mail.
CREATE TABLE letter_chains (
    letter_id {key} PRIMARY KEY,        -- the letter: let_7
    correlation_id {key} NOT NULL,      -- id of the chain, shared by a letter, its replies and the letters that they cause
    hops {integer} NOT NULL,            -- position in the chain, from 1
    in_reply_to {key},                  -- the letter that it replies to; null: not a reply
    agent_id {key} NOT NULL,            -- the agent that wrote it
    reply_to {key} NOT NULL,            -- the mailbox for replies; empty: none expected
    read_by {key},                      -- the run that last read it; null: none
    created_at {integer} NOT NULL       -- time of the put
) {strict};

CREATE INDEX letter_chains_read_by ON letter_chains (read_by) WHERE read_by IS NOT NULL;
