-- What runs wrote, and where it is. Writer: outputs.
CREATE TABLE outputs (
    run_id {key} PRIMARY KEY,           -- the run
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'sealed', 'lost', 'deleted')),
    host {key} NOT NULL,                -- the machine that has, or had, its files
    folder TEXT,                        -- where they are; null: they were removed
    mode {key} NOT NULL,                -- how the run's output was held: pipe, pty, …
    bytes {integer} NOT NULL,           -- all that the run wrote: what is kept, and what was cut
    lines {integer},                    -- lines of the text that is kept
    sha256 TEXT,                        -- of the text that is kept
    cut_bytes {integer} NOT NULL,       -- what its cap left out
    text_bytes {integer},               -- the text that is kept, after redaction
    sealed_bytes {integer},             -- the sealed file
    errors_bytes {integer},             -- the sealed file of its standard error, where that is kept apart
    utf8 {integer},                     -- 1: all of it is UTF-8
    frames {blob},                      -- the index of the sealed file: where each part of the text begins
    head TEXT,                          -- how it begins
    tail TEXT,                          -- how it ends
    reason TEXT,                        -- why it was lost or deleted
    created_at {integer} NOT NULL,      -- when it began
    sealed_at {integer},                -- when it was sealed
    deleted_at {integer},               -- when it was deleted
    CHECK (state <> 'sealed' OR sha256 IS NOT NULL)
) {strict};

CREATE INDEX outputs_open ON outputs (host, run_id) WHERE state = 'open';
CREATE INDEX outputs_sealed ON outputs (sealed_at) WHERE state = 'sealed';
CREATE INDEX outputs_uncleared ON outputs (host, run_id)
    WHERE state = 'deleted' AND folder IS NOT NULL;

-- Sealed files, in stores that several machines share. Writer: outputs.
CREATE TABLE output_chunks (
    run_id {key} NOT NULL,              -- the run
    stream {key} NOT NULL               -- which of its files
        CHECK (stream IN ('output', 'errors')),
    number {integer} NOT NULL,          -- in order, from 0
    data {blob} NOT NULL,               -- 1 MiB each, the last one less
    PRIMARY KEY (run_id, stream, number)
) {strict};

-- What was said about a run, line by line. Writer: outputs.
CREATE TABLE log_lines (
    seq {serial},                       -- order of arrival; the public id is log_184
    run_id {key} NOT NULL,              -- the run
    at {integer} NOT NULL,              -- when
    level {key} NOT NULL                -- how grave it is
        CHECK (level IN ('debug', 'info', 'warn', 'error')),
    message TEXT NOT NULL,              -- for people
    metadata {json},                    -- for programs
    source {key}                        -- which part said it
) {strict};

CREATE INDEX log_lines_by_run ON log_lines (run_id, seq);
CREATE INDEX log_lines_alarming ON log_lines (run_id, seq) WHERE level IN ('warn', 'error');
