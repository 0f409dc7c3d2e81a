-- Machines that run agents for this store: one row per boot of a host. Writer: nodes.
CREATE TABLE nodes (
    id {key} PRIMARY KEY,               -- nod_…
    name {key} NOT NULL,                -- host name
    boot_id {key} NOT NULL,             -- identifies one boot of the host
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('up', 'left', 'lost')),
    owner TEXT,                         -- the daemon that holds the lease
    fence {integer} NOT NULL,           -- fencing token; incremented each time a daemon joins as this node
    lease_until {integer} NOT NULL,     -- end of the daemon's lease; the node is lost afterwards
    slots {integer} NOT NULL            -- maximum number of concurrent runs
        CHECK (slots >= 0),
    labels {json} NOT NULL,             -- labels for the placement of runs
    joined_at {integer} NOT NULL,       -- first join
    seen_at {integer} NOT NULL,         -- last heartbeat
    UNIQUE (name, boot_id)
) {strict};

CREATE INDEX nodes_up ON nodes (lease_until) WHERE state = 'up';

-- Leader of each daemon loop: a lease by name. Writer: nodes.
CREATE TABLE leaders (
    name {key} PRIMARY KEY,             -- name of the loop
    owner TEXT NOT NULL,                -- the current or last leader
    fence {integer} NOT NULL,           -- fencing token; incremented when the leader changes
    lease_until {integer} NOT NULL      -- end of the leader's lease
) {strict};
