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
