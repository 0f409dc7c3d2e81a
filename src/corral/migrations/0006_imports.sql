-- Files that were brought in from outside, and how far each was read. Writer: imports.
CREATE TABLE imports (
    source {key} NOT NULL,              -- claude, codex: whose record it is
    path {key} NOT NULL,                -- the file
    session_id {key} NOT NULL,          -- the session that it became
    read_bytes {integer} NOT NULL,      -- as far as it was read
    turns {integer} NOT NULL,           -- how many turns came of it
    charges {integer} NOT NULL,         -- how many charges
    updated_at {integer} NOT NULL,      -- when something new was last found in it
    PRIMARY KEY (path, source)
) {strict};

-- What each row of another program's database became here. Writer: imports.
CREATE TABLE origins (
    tool {key} NOT NULL,                -- agent-yes, flightdeck, nanoclaw, multishot, agents
    source {key} NOT NULL,              -- which of its databases: the path, or the name it was given
    part {key} NOT NULL,                -- the table there
    row_id {key} NOT NULL,              -- the row's own key there
    became {key},                       -- the table of what it became; null: of nothing, it is kept as it was
    id {key},                           -- the id of that
    rest {json},                        -- the columns and values that have no place elsewhere, as they were
    trouble {json},                     -- what was found wrong with it, in words; null: nothing
    digest {key} NOT NULL,              -- a hash of the whole row, to see whether it changed since
    imported_at {integer} NOT NULL,     -- when it was brought in
    changed_at {integer},               -- when it was last found changed there; `rest` is the row since then
    PRIMARY KEY (tool, source, part, row_id)
) {strict};

CREATE INDEX origins_by_row ON origins (row_id);
CREATE INDEX origins_by_id ON origins (id) WHERE id IS NOT NULL;
