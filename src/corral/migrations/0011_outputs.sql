-- Output of runs: location, size, hash, head and tail. Writer: outputs.
CREATE TABLE outputs (
    run_id {key} PRIMARY KEY,           -- the run
    state {key} NOT NULL                -- see docs/reference/states.md
        CHECK (state IN ('open', 'sealed', 'lost', 'deleted')),
    host {key} NOT NULL,                -- host name of the machine with the files
    folder TEXT,                        -- directory of the files; null: removed
    mode {key} NOT NULL,                -- how input and output were connected: pipe, pty, …
    bytes {integer} NOT NULL,           -- all bytes that the run wrote, dropped ones included
    lines {integer},                    -- lines of the stored text
    sha256 TEXT,                        -- hash of the stored text
    dropped_bytes {integer} NOT NULL,   -- bytes beyond the size limit
    text_bytes {integer},               -- size of the stored text, after redaction
    sealed_bytes {integer},             -- size of the sealed file
    stderr_bytes {integer},             -- size of the sealed stderr, if stored separately
    utf8 {integer},                     -- 1: valid UTF-8
    frames {blob},                      -- index of the sealed file: the offset of each frame
    head TEXT,                          -- start of the text
    tail TEXT,                          -- end of the text
    reason TEXT,                        -- why it is lost or deleted
    created_at {integer} NOT NULL,      -- start of the output
    sealed_at {integer},                -- time of sealing
    deleted_at {integer},               -- time of deletion
    CHECK (state <> 'sealed' OR sha256 IS NOT NULL)
) {strict};

CREATE INDEX outputs_open ON outputs (host, run_id) WHERE state = 'open';
CREATE INDEX outputs_sealed ON outputs (sealed_at) WHERE state = 'sealed';
CREATE INDEX outputs_uncleared ON outputs (host, run_id)
    WHERE state = 'deleted' AND folder IS NOT NULL;

-- Sealed files, in stores that several machines share. Writer: outputs.
CREATE TABLE output_chunks (
    run_id {key} NOT NULL,              -- the run
    stream {key} NOT NULL               -- which file
        CHECK (stream IN ('output', 'stderr')),
    number {integer} NOT NULL,          -- position, from 0
    data {blob} NOT NULL,               -- 1 MiB, the last one less
    PRIMARY KEY (run_id, stream, number)
) {strict};

-- Log of a run, line by line. Writer: outputs.
CREATE TABLE log_lines (
    seq {serial},                       -- order of insertion; the public id is log_184
    run_id {key} NOT NULL,              -- the run
    at {integer} NOT NULL,              -- time
    level {key} NOT NULL                -- severity
        CHECK (level IN ('debug', 'info', 'warn', 'error')),
    message TEXT NOT NULL,              -- text for people
    metadata {json},                    -- data for programs
    source {key}                        -- component that wrote it
) {strict};

CREATE INDEX log_lines_by_run ON log_lines (run_id, seq);
CREATE INDEX log_lines_warnings ON log_lines (run_id, seq) WHERE level IN ('warn', 'error');
