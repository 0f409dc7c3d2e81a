from corral.db.retention import Retention, Scoped
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.outputs.model import MOVES, LogLine, Output

_COLUMNS = """run_id AS id, state, host, folder, mode, bytes, lines, sha256, cut_bytes, text_bytes,
    sealed_bytes, errors_bytes, utf8, head, tail, reason, created_at, sealed_at, deleted_at"""

OUTPUTS = StateTable(Output, MOVES, table="outputs", columns=_COLUMNS, key="run_id")

PROGRESS = Statement("""
    UPDATE outputs SET bytes = :bytes WHERE run_id = :run_id AND state = 'open' RETURNING run_id
""")

FRAMES = Statement("SELECT frames, sealed_bytes FROM outputs WHERE run_id = :run_id")

OPEN_ON = Query(
    Output,
    f"""
    SELECT {_COLUMNS} FROM outputs
    WHERE state = 'open' AND host = :host AND run_id > :after
    ORDER BY run_id LIMIT :limit
""",
)

HELD_ON = Query(
    Output,
    f"""
    SELECT {_COLUMNS} FROM outputs
    WHERE run_id > :after AND host = :host AND folder IS NOT NULL AND state IN ('open', 'sealed')
    ORDER BY run_id LIMIT :limit
""",
)

WALK = Query(
    Output, f"SELECT {_COLUMNS} FROM outputs WHERE run_id > :after ORDER BY run_id LIMIT :limit"
)

LEAVE_FOLDERS = Statement("UPDATE outputs SET folder = NULL WHERE folder IS NOT NULL")

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

FORGET = Statement("""
    DELETE FROM outputs
    WHERE run_id = :run_id AND state = 'deleted' AND folder IS NULL RETURNING run_id
""")

_OLD = "FROM outputs WHERE state = 'sealed' AND sealed_at < :before AND {whose}"
_PROJECT = "(SELECT runs.project_id FROM runs WHERE runs.id = outputs.run_id)"
PRUNABLE = Scoped(
    f"SELECT run_id {_OLD} ORDER BY sealed_at LIMIT :limit {{skip_locked}}",
    project=_PROJECT,
    imported=None,
)
COUNT_PRUNABLE = Scoped(f"SELECT count(*) {_OLD}", project=_PROJECT, imported=None)

# A machine that was silent for so long does not come back to remove its files.
DELETED_KEPT = Retention(
    "outputs",
    setting="nodes.keep_ms",
    born="created_at",
    over="state = 'deleted' AND deleted_at < :before",
    key="run_id",
)

# Only while it is open: what was sealed is never changed, and what is deleted leaves nothing.
ADD_CHUNK = Statement("""
    INSERT INTO output_chunks (run_id, stream, number, data)
    SELECT run_id, :stream, :number, :data FROM outputs
    WHERE run_id = :run_id AND state IN ('open', 'lost') {locked}
    ON CONFLICT (run_id, stream, number) DO UPDATE SET data = excluded.data
    RETURNING number
""")

CHUNK = Statement("""
    SELECT data FROM output_chunks
    WHERE run_id = :run_id AND stream = :stream AND number = :number
""")

BRING_CHUNK = Statement("""
    INSERT INTO output_chunks (run_id, stream, number, data)
    VALUES (:run_id, :stream, :number, :data)
    ON CONFLICT (run_id, stream, number) DO UPDATE SET data = excluded.data
""")

KEPT_BYTES = Statement("""
    SELECT CAST(coalesce(sum(length(data)), 0) AS {integer}) FROM output_chunks
    WHERE run_id = :run_id
""")

COUNT_CHUNKS = Statement("SELECT count(*) FROM output_chunks")

HAS_CHUNK = Statement("""
    SELECT 1 FROM output_chunks
    WHERE run_id = :run_id AND stream = :stream AND number = :number
""")

DROP_CHUNKS = Statement("""
    DELETE FROM output_chunks WHERE run_id = :run_id AND stream = :stream AND number >= :number
""")

_LINE = "'log_' || seq AS id, run_id, at, level, message, metadata, source"

LOG = Query(
    LogLine,
    f"""
    INSERT INTO log_lines (run_id, at, level, message, metadata, source)
    VALUES (:run_id, :at, :level, :message, :metadata, :source)
    RETURNING {_LINE}
""",
)

LINES = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines WHERE run_id = :run_id AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

INFORMING = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines WHERE run_id = :run_id AND seq > :after AND level <> 'debug'
    ORDER BY seq LIMIT :limit
""",
)

ALARMING = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines
    WHERE run_id = :run_id AND seq > :after AND level IN ('warn', 'error')
    ORDER BY seq LIMIT :limit
""",
)

# Said twice, so that both engines see that the index of what is alarming has them all.
ERRORS = Query(
    LogLine,
    f"""
    SELECT {_LINE} FROM log_lines
    WHERE run_id = :run_id AND seq > :after AND level IN ('warn', 'error') AND level = 'error'
    ORDER BY seq LIMIT :limit
""",
)

# The newest line of the store stays, empty: its number must not be given out again.
KEEP_LINE = Statement("""
    UPDATE log_lines SET run_id = '', level = 'debug', message = '', metadata = NULL, source = NULL
    WHERE seq = (SELECT max(seq) FROM log_lines) AND run_id = :run_id
""")

DROP_LINES = Statement("""
    DELETE FROM log_lines
    WHERE run_id IN (:run_id, '') AND seq < (SELECT max(seq) FROM log_lines)
""")
