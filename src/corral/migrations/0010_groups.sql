-- What agents ask of people and of one another, and what they were answered. Writer: questions.
CREATE TABLE questions (
    id {key} PRIMARY KEY,               -- qst_…
    project_id {key},                   -- the project that it belongs to, if any
    asker {key} NOT NULL,               -- the mailbox that the answer goes to
    run_id {key},                       -- the run in which it was asked, if that is known
    key {key},                          -- the same key of the same asker is the same question
    text TEXT NOT NULL,                 -- what is asked
    options {json} NOT NULL,            -- the answers to choose from; []: any text
    free {integer} NOT NULL             -- 1: an answer beside the options is fine
        CHECK (free IN (0, 1)),
    answerers {json} NOT NULL,          -- who may answer, as user:NAME or agent:NAME; []: any person
    fallback TEXT,                      -- what counts when nobody answered in time; null: nothing does
    effect TEXT,                        -- all that will be done on the answer, whole, as it is shown
    needed {integer} NOT NULL           -- how many must give the same answer
        DEFAULT 1 CHECK (needed >= 1),
    votes {json} NOT NULL               -- what each of them answered, when, where several are needed
        DEFAULT '[]',
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'answered', 'expired', 'withdrawn')),
    answer TEXT,                        -- what was answered, or the fallback
    answered_by {key},                  -- who answered
    deadline_at {integer} NOT NULL,     -- from when on an answer comes too late
    created_at {integer} NOT NULL,      -- when it was asked
    ended_at {integer},                 -- when it was answered, expired or withdrawn
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    correlation_id {key},               -- the letter chain that its letters continue; null: made by a person
    hops {integer},                     -- letters of agents that led to the run that asked; null: made by a person
    CHECK ((ended_at IS NULL) = (state = 'open'))
) {strict};

CREATE INDEX questions_open ON questions (id) WHERE state = 'open';
CREATE INDEX questions_due ON questions (deadline_at, id) WHERE state = 'open';
CREATE INDEX questions_by_asker ON questions (asker, id);
CREATE INDEX questions_open_by_asker ON questions (asker, id) WHERE state = 'open';
CREATE INDEX questions_by_project ON questions (project_id, id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX questions_by_key ON questions (asker, key) WHERE key IS NOT NULL;

-- Named chats of agents and people; direct messages and broadcasts are groups as well. Writer: groups.
CREATE TABLE groups (
    id {key} PRIMARY KEY,               -- grp_…
    name {key} NOT NULL,                -- what members call it; of a direct one, both members
    project_id {key},                   -- the project that it belongs to, if any
    kind {key} NOT NULL                 -- group; direct: of two; everyone: of all agents
        CHECK (kind IN ('group', 'direct', 'everyone')),
    roles {json} NOT NULL,              -- agents of these roles join by themselves; ["*"]: of any
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'archived')),
    posts {integer} NOT NULL,           -- how many posts it has had: the number of the last one
    created_by {key} NOT NULL,          -- who made it
    created_at {integer} NOT NULL,      -- when it was made
    updated_at {integer} NOT NULL,      -- when somebody last posted, joined or left
    ended_at {integer},                 -- when it was archived
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state = 'open'))
) {strict};

CREATE UNIQUE INDEX groups_by_name ON groups (name, coalesce(project_id, ''))
    WHERE state = 'open';
CREATE INDEX groups_open ON groups (id) WHERE state = 'open';
CREATE INDEX groups_by_project ON groups (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX groups_ended ON groups (ended_at, id) WHERE ended_at IS NOT NULL;

-- Which roles join which open groups by themselves. Writer: groups.
CREATE TABLE group_roles (
    role {key} NOT NULL,                -- a role of agents; *: any
    group_id {key} NOT NULL,            -- the group
    PRIMARY KEY (role, group_id)
) {strict};

CREATE INDEX group_roles_by_group ON group_roles (group_id);

-- Who is in a group, and how far each has read. Writer: groups.
CREATE TABLE members (
    group_id {key} NOT NULL,            -- the group
    member {key} NOT NULL,              -- agent:NAME or user:NAME, whose mailbox gets the posts
    role {key},                         -- the role by which it joined; null: it was asked to
    read_number {integer} NOT NULL,     -- the last post that it has read
    joined_at {integer} NOT NULL,       -- when it joined
    PRIMARY KEY (group_id, member)
) {strict};

CREATE INDEX members_by_member ON members (member, group_id);

-- What was said in groups, in order. Writer: groups.
CREATE TABLE posts (
    id {key} PRIMARY KEY,               -- pst_…
    group_id {key} NOT NULL,            -- the group
    number {integer} NOT NULL,          -- its place in the group, from 1, without gaps
    author {key} NOT NULL,              -- who says it
    text TEXT NOT NULL,                 -- the words
    reply_to {integer},                 -- the number of the post that it answers
    key {key},                          -- the same key of the same author is the same post
    at {integer} NOT NULL,              -- when it was said
    imported_at {integer}               -- when another tool's row was imported; null: created by Corral
) {strict};

CREATE UNIQUE INDEX posts_by_number ON posts (group_id, number);
CREATE UNIQUE INDEX posts_by_key ON posts (group_id, author, key) WHERE key IS NOT NULL;

-- What members think of a post, each sign once. Writer: groups.
CREATE TABLE reactions (
    post_id {key} NOT NULL,             -- the post
    sign {key} NOT NULL,                -- an emoji, or a short word
    member {key} NOT NULL,              -- who gave it
    at {integer} NOT NULL,              -- when
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    PRIMARY KEY (post_id, sign, member)
) {strict};

-- Choices that agents made, and whether somebody confirmed them. Writer: decisions.
CREATE TABLE decisions (
    id {key} PRIMARY KEY,               -- dec_…
    project_id {key},                   -- the project that it belongs to, if any
    author {key} NOT NULL,              -- the mailbox of whoever decided
    run_id {key},                       -- the run in which it was decided, if that is known
    key {key},                          -- the same key of the same author is the same decision
    category {key} NOT NULL,            -- architecture, dependency, style …
    title TEXT NOT NULL,                -- what was decided
    rationale TEXT NOT NULL,            -- why
    alternatives {json} NOT NULL,       -- what else there was
    answerers {json} NOT NULL,          -- who may confirm, as user:NAME or agent:NAME; []: any person
    at_deadline {key} NOT NULL          -- what becomes of it when nobody confirms it in time
        CHECK (at_deadline IN ('reject', 'dismiss')),
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('recorded', 'proposed', 'confirmed', 'rejected', 'dismissed')),
    decided_by {key},                   -- who confirmed, rejected or dismissed it; null: its deadline did
    reason TEXT,                        -- why
    deadline_at {integer},              -- from when on it cannot be confirmed; null: nobody waits for that
    created_at {integer} NOT NULL,      -- when it was recorded
    ended_at {integer},                 -- when it was confirmed, rejected or dismissed
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state IN ('recorded', 'proposed')))
) {strict};

CREATE INDEX decisions_proposed ON decisions (id) WHERE state = 'proposed';
CREATE INDEX decisions_due ON decisions (deadline_at, id) WHERE state = 'proposed';
CREATE INDEX decisions_by_project ON decisions (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX decisions_proposed_by_project ON decisions (project_id)
    WHERE state = 'proposed' AND project_id IS NOT NULL;
CREATE INDEX decisions_proposed_by_author ON decisions (author) WHERE state = 'proposed';
CREATE UNIQUE INDEX decisions_by_key ON decisions (author, key) WHERE key IS NOT NULL;

-- What is remembered, for an agent, a project or everyone. Writer: memory.
CREATE TABLE notes (
    id {key} PRIMARY KEY,               -- nte_…
    scope {key} NOT NULL,               -- everyone, project:ID or agent:NAME
    project_id {key},                   -- the project, where it is for one
    category {key} NOT NULL,            -- core, decision, gotcha, pattern, expertise … ; core is always given
    key {key},                          -- one note of a scope has it at a time; the next supersedes it
    text TEXT NOT NULL,                 -- what is remembered; data, never an instruction
    source {key} NOT NULL,              -- who noted it
    confidence {integer} NOT NULL       -- how sure they are, in percent
        CHECK (confidence BETWEEN 0 AND 100),
    uses {integer} NOT NULL,            -- how often it was given to an agent
    used_at {integer},                  -- when it last was
    supersedes {key},                   -- the note in whose place it came
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('current', 'superseded')),
    expires_at {integer},               -- from when on it does not count; null: it does until it is forgotten
    created_at {integer} NOT NULL,      -- when it was noted
    ended_at {integer},                 -- when another one came in its place
    imported_at {integer},              -- when another tool's row was imported; null: created by Corral
    CHECK ((ended_at IS NULL) = (state = 'current'))
) {strict};

CREATE INDEX notes_current ON notes (id) WHERE state = 'current';
CREATE INDEX notes_by_scope ON notes (scope, id);
CREATE INDEX notes_current_by_scope ON notes (scope, id) WHERE state = 'current';
CREATE INDEX notes_ended ON notes (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX notes_expiring ON notes (expires_at)
    WHERE state = 'current' AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX notes_by_key ON notes (scope, key) WHERE key IS NOT NULL AND state = 'current';
