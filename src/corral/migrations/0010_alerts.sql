-- Subscriptions of webhooks, commands, the desktop and mailboxes to events. Writer: alerts.
CREATE TABLE alerts (
    id {key} PRIMARY KEY,               -- alr_…
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('active', 'removed')),
    kinds {json} NOT NULL,              -- subscribed events: crashed, failed, stuck, needs_input, budget, finished, undelivered
    project_id {key},                   -- only events of this project; null: all
    agent_id {key},                     -- only events of this agent; null: all
    target_kind {key} NOT NULL          -- how notifications are sent
        CHECK (target_kind IN ('webhook', 'command', 'desktop', 'mailbox')),
    target TEXT NOT NULL,               -- URL or secret:NAME, command line, or mailbox; empty for the desktop
    secret TEXT,                        -- name of the secret that signs webhook requests
    created_at {integer} NOT NULL,      -- time of creation
    created_by TEXT NOT NULL,           -- actor
    ended_at {integer},                 -- time of removal
    CHECK ((ended_at IS NULL) = (state = 'active'))
) {strict};

CREATE INDEX alerts_active ON alerts (id) WHERE state = 'active';
