"""SQL of outputs, their chunks and log lines."""

from corral.db.listing import Listing
from corral.db.retention import PrunableRows, Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.outputs.model import TRANSITIONS, LogLine, Output

_COLUMNS = columns_of(Output, id="run_id")

OUTPUTS = StatefulTable(
    Output,
    TRANSITIONS,
    table="outputs",
    columns=_COLUMNS,
    key="run_id",
    extra_columns=("frames",),
)

PROGRESS = Statement("""
    UPDATE outputs SET bytes = :bytes WHERE run_id = :run_id AND state = 'open' RETURNING run_id
""")

FRAMES = Statement("SELECT frames, sealed_bytes FROM outputs WHERE run_id = :run_id")

OPEN_ON_HOST = Listing(
    Query(
        Output,
        f"""
        SELECT {_COLUMNS} FROM outputs
        WHERE state = 'open' AND host = :host AND run_id > :after
        ORDER BY run_id LIMIT :limit
    """,
    ),
    start={"after": ""},
    key=lambda output: (output.id,),
)

FILES_ON_HOST = Query(
    Output,
    f"""
    SELECT {_COLUMNS} FROM outputs
    WHERE run_id > :after AND host = :host AND folder IS NOT NULL AND state IN ('open', 'sealed')
    ORDER BY run_id LIMIT :limit
""",
)

LIST = Query(
    Output, f"SELECT {_COLUMNS} FROM outputs WHERE run_id > :after ORDER BY run_id LIMIT :limit"
)

DETACH_FOLDERS = Statement("UPDATE outputs SET folder = NULL WHERE folder IS NOT NULL")

UNCLEARED = Query(
    Output,
    f"""
    SELECT {_COLUMNS} FROM outputs
    WHERE state = 'deleted' AND host = :host AND folder IS NOT NULL
    ORDER BY run_id LIMIT :limit
""",
)

CLEAR = Statement("""
    UPDATE outputs SET folder = NULL WHERE run_id = :run_id AND state = 'deleted' RETURNING run_id
""")

DELETE = Statement("""
    DELETE FROM outputs
    WHERE run_id = :run_id AND state = 'deleted' AND folder IS NULL RETURNING run_id
""")

PRUNABLE = PrunableRows(
    "outputs",
    setting="outputs.retention_ms",
    ended={"sealed_at": "state = 'sealed' AND sealed_at < :before"},
    key="run_id",
    project="(SELECT runs.project_id FROM runs WHERE runs.id = outputs.run_id)",
    imported=None,
    batch=100,
)

# After this time, the machine is not expected to come back and remove its files.
DELETED_RETENTION = Retention(
    "outputs",
    setting="nodes.retention_ms",
    created="created_at",
    ended="state = 'deleted' AND deleted_at < :before",
    key="run_id",
)

ADD_CHUNK = Statement("""
    INSERT INTO output_chunks (run_id, stream, number, data)
    SELECT run_id, :stream, :number, :data FROM outputs
    -- A sealed output is immutable, and a deleted one must not get new chunks.
    WHERE run_id = :run_id AND state IN ('open', 'lost') {locked}
    ON CONFLICT (run_id, stream, number) DO UPDATE SET data = excluded.data
    RETURNING number
""")

CHUNK = Statement("""
    SELECT data FROM output_chunks
    WHERE run_id = :run_id AND stream = :stream AND number = :number
""")

IMPORT_CHUNK = Statement("""
    INSERT INTO output_chunks (run_id, stream, number, data)
    VALUES (:run_id, :stream, :number, :data)
    ON CONFLICT (run_id, stream, number) DO UPDATE SET data = excluded.data
""")

STORED_BYTES = Statement("""
    SELECT CAST(coalesce(sum(length(data)), 0) AS {integer}) FROM output_chunks
    WHERE run_id = :run_id
""")

COUNT_CHUNKS = Statement("SELECT count(*) FROM output_chunks")

HAS_CHUNK = Statement("""
    SELECT 1 FROM output_chunks
    WHERE run_id = :run_id AND stream = :stream AND number = :number
""")

DELETE_CHUNKS = Statement("""
    DELETE FROM output_chunks WHERE run_id = :run_id AND stream = :stream AND number >= :number
""")

_LINE = columns_of(LogLine, id="'log_' || seq")

ADD_LOG_LINE = Query(
    LogLine,
    f"""
    INSERT INTO log_lines (run_id, at, level, message, metadata, source)
    VALUES (:run_id, :at, :level, :message, :metadata, :source)
    RETURNING {_LINE}
""",
)

LOG_LINES = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines WHERE run_id = :run_id AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

LOG_LINES_INFO = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines WHERE run_id = :run_id AND seq > :after AND level <> 'debug'
    ORDER BY seq LIMIT :limit
""",
)

LOG_LINES_WARN = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines
    WHERE run_id = :run_id AND seq > :after AND level IN ('warn', 'error')
    ORDER BY seq LIMIT :limit
""",
)

# The IN condition is redundant: with it, both engines recognize the partial index of warnings.
LOG_LINES_ERROR = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines
    WHERE run_id = :run_id AND seq > :after AND level IN ('warn', 'error') AND level = 'error'
    ORDER BY seq LIMIT :limit
""",
)

# The line with the highest seq stays as an empty row, so that its seq is not reused.
BLANK_HIGHEST_LOG_LINE = Statement("""
    UPDATE log_lines SET run_id = '', level = 'debug', message = '', metadata = NULL, source = NULL
    WHERE seq = (SELECT max(seq) FROM log_lines) AND run_id = :run_id
""")

DELETE_LOG_LINES = Statement("""
    DELETE FROM log_lines
    WHERE run_id IN (:run_id, '') AND seq < (SELECT max(seq) FROM log_lines)
""")
