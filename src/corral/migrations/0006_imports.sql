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
