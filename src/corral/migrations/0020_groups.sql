-- Group chats of agents and people, including direct messages and broadcasts. Writer: groups.
CREATE TABLE groups (
    id {key} PRIMARY KEY,               -- grp_…
    name {key} NOT NULL,                -- unique name while open; direct: both member names
    project_id {key},                   -- the project; null: none
    kind {key} NOT NULL                 -- group; direct: two members; everyone: all agents
        CHECK (kind IN ('group', 'direct', 'everyone')),
    roles {json} NOT NULL,              -- agents of these roles join automatically; ["*"]: any role
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'archived')),
    posts {integer} NOT NULL,           -- number of the latest post
    created_by {key} NOT NULL,          -- actor that created it
    created_at {integer} NOT NULL,      -- time of creation
    updated_at {integer} NOT NULL,      -- last post, join or leave
    ended_at {integer},                 -- time of archiving
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state = 'open'))
) {strict};

CREATE UNIQUE INDEX groups_by_name ON groups (name, coalesce(project_id, ''))
    WHERE state = 'open';
CREATE INDEX groups_open ON groups (id) WHERE state = 'open';
CREATE INDEX groups_by_project ON groups (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX groups_ended ON groups (ended_at, id) WHERE ended_at IS NOT NULL;

-- Index of the roles that join open groups automatically. Writer: groups.
CREATE TABLE group_roles (
    role {key} NOT NULL,                -- role of agents; *: any
    group_id {key} NOT NULL,            -- the group
    PRIMARY KEY (role, group_id)
) {strict};

CREATE INDEX group_roles_by_group ON group_roles (group_id);

-- Members of groups, and how far each has read. Writer: groups.
CREATE TABLE group_members (
    group_id {key} NOT NULL,            -- the group
    name {key} NOT NULL,                -- agent:NAME or user:NAME, whose mailbox gets the posts
    role {key},                         -- role by which it joined automatically; null: joined explicitly
    read_number {integer} NOT NULL,     -- number of the last post that it has read
    joined_at {integer} NOT NULL,       -- time of joining
    PRIMARY KEY (group_id, name)
) {strict};

CREATE INDEX group_members_by_name ON group_members (name, group_id);

-- Messages in groups. Writer: groups.
CREATE TABLE posts (
    id {key} PRIMARY KEY,               -- pst_…
    group_id {key} NOT NULL,            -- the group
    number {integer} NOT NULL,          -- position in the group, from 1, without gaps
    author {key} NOT NULL,              -- agent:NAME or user:NAME
    text TEXT NOT NULL,                 -- text of the message
    reply_to {integer},                 -- number of the post that it replies to; null: none
    key {key},                          -- idempotency key, unique per author
    at {integer} NOT NULL,              -- time of the post
    imported_at {integer}               -- time of the import; null: not imported
) {strict};

CREATE UNIQUE INDEX posts_by_number ON posts (group_id, number);
CREATE UNIQUE INDEX posts_by_key ON posts (group_id, author, key) WHERE key IS NOT NULL;

-- Reactions of members to posts; one row for each post, emoji and member. Writer: groups.
CREATE TABLE reactions (
    post_id {key} NOT NULL,             -- the post
    emoji {key} NOT NULL,               -- an emoji or a short word
    member {key} NOT NULL,              -- agent:NAME or user:NAME
    at {integer} NOT NULL,              -- time of the reaction
    imported_at {integer},              -- time of the import; null: not imported
    PRIMARY KEY (post_id, emoji, member)
) {strict};
