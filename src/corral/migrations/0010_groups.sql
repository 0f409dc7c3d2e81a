-- Questions of agents to people and other agents, and their answers. Writer: questions.
CREATE TABLE questions (
    id {key} PRIMARY KEY,               -- qst_…
    project_id {key},                   -- the project; null: none
    asker {key} NOT NULL,               -- mailbox that gets the answer
    run_id {key},                       -- run that asked; null: not known
    key {key},                          -- idempotency key, unique per asker
    text TEXT NOT NULL,                 -- the question
    options {json} NOT NULL,            -- possible answers; []: any text
    free_text {integer} NOT NULL        -- 1: any text is accepted as an answer
        CHECK (free_text IN (0, 1)),
    answerers {json} NOT NULL,          -- who may answer: user:NAME or agent:NAME; []: any person
    fallback TEXT,                      -- answer that applies at the deadline; null: none
    effect TEXT,                        -- complete description of what the answer causes
    required_votes {integer} NOT NULL   -- how many people must give the same answer
        DEFAULT 1 CHECK (required_votes >= 1),
    votes {json} NOT NULL               -- votes so far, where several are required
        DEFAULT '[]',
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'answered', 'expired', 'withdrawn')),
    answer TEXT,                        -- the answer, or the fallback
    answered_by {key},                  -- who answered
    deadline_at {integer} NOT NULL,     -- time from which answers are rejected
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time of the answer, expiry or withdrawal
    imported_at {integer},              -- time of the import; null: not imported
    correlation_id {key},               -- letter chain that its letters continue; null: created by a person
    hops {integer},                     -- agent letters that led to the asking run; null: created by a person
    CHECK ((ended_at IS NULL) = (state = 'open'))
) {strict};

CREATE INDEX questions_open ON questions (id) WHERE state = 'open';
CREATE INDEX questions_due ON questions (deadline_at, id) WHERE state = 'open';
CREATE INDEX questions_by_asker ON questions (asker, id);
CREATE INDEX questions_open_by_asker ON questions (asker, id) WHERE state = 'open';
CREATE INDEX questions_by_project ON questions (project_id, id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX questions_by_key ON questions (asker, key) WHERE key IS NOT NULL;

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

-- Decisions of agents, and their confirmation by people. Writer: decisions.
CREATE TABLE decisions (
    id {key} PRIMARY KEY,               -- dec_…
    project_id {key},                   -- the project; null: none
    author {key} NOT NULL,              -- mailbox of the author
    run_id {key},                       -- run that decided; null: not known
    key {key},                          -- idempotency key, unique per author
    category {key} NOT NULL,            -- architecture, dependency, style …
    title TEXT NOT NULL,                -- the decision
    rationale TEXT NOT NULL,            -- reasons for it
    alternatives {json} NOT NULL,       -- rejected alternatives
    answerers {json} NOT NULL,          -- who may confirm: user:NAME or agent:NAME; []: any person
    deadline_outcome {key} NOT NULL     -- outcome if it is not confirmed by the deadline
        CHECK (deadline_outcome IN ('reject', 'dismiss')),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('recorded', 'proposed', 'confirmed', 'rejected', 'dismissed')),
    decided_by {key},                   -- who confirmed, rejected or dismissed it; null: the deadline
    reason TEXT,                        -- reason of the outcome
    deadline_at {integer},              -- time from which it cannot be confirmed; null: needs no confirmation
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time of the confirmation, rejection or dismissal
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state IN ('recorded', 'proposed')))
) {strict};

CREATE INDEX decisions_proposed ON decisions (id) WHERE state = 'proposed';
CREATE INDEX decisions_due ON decisions (deadline_at, id) WHERE state = 'proposed';
CREATE INDEX decisions_by_project ON decisions (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX decisions_proposed_by_project ON decisions (project_id)
    WHERE state = 'proposed' AND project_id IS NOT NULL;
CREATE INDEX decisions_proposed_by_author ON decisions (author) WHERE state = 'proposed';
CREATE UNIQUE INDEX decisions_by_key ON decisions (author, key) WHERE key IS NOT NULL;

-- Notes that are remembered for an agent, a project or everyone. Writer: notes.
CREATE TABLE notes (
    id {key} PRIMARY KEY,               -- nte_…
    scope {key} NOT NULL,               -- everyone, project:ID or agent:NAME
    project_id {key},                   -- project of the scope; null: none
    category {key} NOT NULL,            -- core, decision, gotcha, pattern, expertise …; core is in every prompt
    key {key},                          -- unique among the current notes of a scope; a new note supersedes the old one
    text TEXT NOT NULL,                 -- the note; data, never an instruction
    source {key} NOT NULL,              -- who added it
    confidence {integer} NOT NULL       -- confidence of the source in percent
        CHECK (confidence BETWEEN 0 AND 100),
    uses {integer} NOT NULL,            -- how often it was given to an agent
    used_at {integer},                  -- time of the last use; null: never used
    supersedes {key},                   -- note that it replaced; null: none
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('current', 'superseded')),
    expires_at {integer},               -- time from which it is ignored; null: never
    created_at {integer} NOT NULL,      -- time of creation
    ended_at {integer},                 -- time when it was superseded
    imported_at {integer},              -- time of the import; null: not imported
    CHECK ((ended_at IS NULL) = (state = 'current'))
) {strict};

CREATE INDEX notes_current ON notes (id) WHERE state = 'current';
CREATE INDEX notes_by_scope ON notes (scope, id);
CREATE INDEX notes_current_by_scope ON notes (scope, id) WHERE state = 'current';
CREATE INDEX notes_ended ON notes (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX notes_expiring ON notes (expires_at)
    WHERE state = 'current' AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX notes_by_key ON notes (scope, key) WHERE key IS NOT NULL AND state = 'current';
