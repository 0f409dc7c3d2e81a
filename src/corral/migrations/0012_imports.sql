-- Imported transcript files, and how far each was read. Writer: imports.
CREATE TABLE imports (
    source {key} NOT NULL,              -- agent CLI that wrote the file: claude, codex
    path {key} NOT NULL,                -- absolute path of the file
    session_id {key} NOT NULL,          -- session that contains its turns
    read_bytes {integer} NOT NULL,      -- offset up to which the file was imported
    turns {integer} NOT NULL,           -- number of turns imported from it
    charges {integer} NOT NULL,         -- number of charges imported from it
    updated_at {integer} NOT NULL,      -- time of the last import that found something new
    PRIMARY KEY (path, source)
) {strict};

-- Imported rows of other tools' databases. Writer: imports.
CREATE TABLE import_origins (
    tool {key} NOT NULL,                -- agent-yes, flightdeck, nanoclaw, multishot or agents
    source {key} NOT NULL,              -- the database: its path, or the name given by the user
    source_table {key} NOT NULL,        -- table of the row in that database
    row_id {key} NOT NULL,              -- primary key of the row in that database
    record_table {key},                 -- table of the record created from the row; null: none, the row is kept in unmapped
    id {key},                           -- id of that record
    unmapped {json},                    -- columns and values without a place in Corral, unchanged
    problems {json},                    -- messages about invalid values; null: none
    digest {key} NOT NULL,              -- hash of the row, to detect later changes
    imported_at {integer} NOT NULL,     -- time of the import
    changed_at {integer},               -- time at which a later import found the row changed; unmapped has the new values
    PRIMARY KEY (tool, source, source_table, row_id)
) {strict};

CREATE INDEX import_origins_by_row ON import_origins (row_id);
CREATE INDEX import_origins_by_id ON import_origins (id) WHERE id IS NOT NULL;
