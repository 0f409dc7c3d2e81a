from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.domain.checkpoints.model import Checkpoint, Head, Kept, Write

_COLUMNS = "seq, thread, ns, id, parent, format, body, metadata, at"
_ONE = f"SELECT {_COLUMNS} FROM checkpoints"

PUT = Statement("""
    INSERT INTO checkpoints (thread, ns, id, parent, format, body, metadata, caller, at)
    VALUES (:thread, :ns, :id, :parent, :format, :body, :metadata, :caller, :now)
    ON CONFLICT (thread, ns, id) DO UPDATE
    SET parent = excluded.parent, format = excluded.format, body = excluded.body,
        metadata = excluded.metadata, caller = excluded.caller
""")

# A checkpoint and its writes: one way to the server, and the state crosses it once. A row without a
# task is the checkpoint; in the others the columns hold what a write has in their place.
GET = Statement(f"""
    WITH named AS (
        SELECT coalesce(:id, (
            SELECT id FROM checkpoints WHERE thread = :thread AND ns = :ns ORDER BY id DESC LIMIT 1
        )) AS id
    )
    SELECT {_COLUMNS}, NULL AS task, NULL AS place, NULL AS path, NULL AS channel
    FROM checkpoints
    WHERE thread = :thread AND ns = :ns AND id = (SELECT id FROM named)
    UNION ALL
    SELECT seq, thread, ns, checkpoint, NULL, format, value, NULL, at, task, place, path, channel
    FROM checkpoint_writes
    WHERE thread = :thread AND ns = :ns AND checkpoint = (SELECT id FROM named)
""")

# Newest first: by the framework's ids within a part, by arrival where several parts are asked for.
OF_PART = Query(
    Checkpoint,
    f"{_ONE} WHERE thread = :thread AND ns = :ns AND id < :before ORDER BY id DESC LIMIT :limit",
)

_BEFORE = "seq < :behind AND id < :before ORDER BY seq DESC LIMIT :limit"

OF_THREAD = Query(Checkpoint, f"{_ONE} WHERE thread = :thread AND {_BEFORE}")
OF_ALL = Query(Checkpoint, f"{_ONE} WHERE {_BEFORE}")

_KEPT = "SELECT seq, thread, ns, id, parent, length(body) AS bytes, at FROM checkpoints"

LIST = Query(Kept, f"{_KEPT} WHERE seq < :behind ORDER BY seq DESC LIMIT :limit")
LIST_OF_THREAD = Query(
    Kept, f"{_KEPT} WHERE thread = :thread AND seq < :behind ORDER BY seq DESC LIMIT :limit"
)

HEADS = Query(Head, "SELECT ns, max(id) AS id FROM checkpoints WHERE thread = :thread GROUP BY ns")

# -- writes ----------------------------------------------------------------------------------------

_WRITE = "ns, checkpoint, task, place, path, channel, format, value"

WRITES = Query(
    Write,
    f"""
    SELECT {_WRITE} FROM checkpoint_writes
    WHERE thread = :thread AND ns = :ns AND checkpoint {{is_listed}}
""",
)

_ADD_WRITE = """
    INSERT INTO checkpoint_writes
        (thread, ns, checkpoint, task, place, path, channel, format, value, at)
    VALUES (:thread, :ns, :checkpoint, :task, :place, :path, :channel, :format, :value, :now)
    ON CONFLICT (thread, ns, checkpoint, task, place)
"""

ADD_WRITE = Statement(f"{_ADD_WRITE} DO NOTHING")

SET_WRITE = Statement(
    f"{_ADD_WRITE} DO UPDATE SET path = excluded.path, channel = excluded.channel,"
    " format = excluded.format, value = excluded.value"
)

# -- copying and forgetting -----------------------------------------------------------------------

COPY = Statement("""
    INSERT INTO checkpoints (thread, ns, id, parent, format, body, metadata, caller, at)
    SELECT :target, ns, id, parent, format, body, metadata, caller, :now
    FROM checkpoints WHERE thread = :source ORDER BY seq
    ON CONFLICT (thread, ns, id) DO NOTHING
""")

COPY_WRITES = Statement("""
    INSERT INTO checkpoint_writes
        (thread, ns, checkpoint, task, place, path, channel, format, value, at)
    SELECT :target, ns, checkpoint, task, place, path, channel, format, value, :now
    FROM checkpoint_writes WHERE thread = :source ORDER BY seq
    ON CONFLICT (thread, ns, checkpoint, task, place) DO NOTHING
""")

FORGET = Statement("DELETE FROM checkpoints WHERE thread = :thread RETURNING seq")
FORGET_WRITES = Statement("DELETE FROM checkpoint_writes WHERE thread = :thread")

_OLDER = "thread = :thread AND ns = :ns AND {id} < :newest AND NOT {id} {{is_listed}}"

FORGET_OLDER = Statement(f"DELETE FROM checkpoints WHERE {_OLDER.format(id='id')} RETURNING seq")
FORGET_OLDER_WRITES = Statement(
    f"DELETE FROM checkpoint_writes WHERE {_OLDER.format(id='checkpoint')}"
)

OF_CALLER = Statement("SELECT thread, ns, id FROM checkpoints WHERE caller = :caller")
FORGET_ONE = Statement("DELETE FROM checkpoints WHERE thread = :thread AND ns = :ns AND id = :id")
FORGET_WRITES_OF_ONE = Statement("""
    DELETE FROM checkpoint_writes WHERE thread = :thread AND ns = :ns AND checkpoint = :id
""")

# A thread goes as a whole, and only when nothing was added for long: a state may need older ones.
_QUIET = """at < :before AND coalesce((
    SELECT newest.at FROM checkpoints AS newest WHERE newest.thread = {table}.thread
    ORDER BY newest.seq DESC LIMIT 1), 0) < :before"""


def _kept(table: str) -> Retention:
    over = _QUIET.format(table=table)
    return Retention(table, setting="checkpoints.keep_ms", born="at", over=over, key="seq")


WRITES_KEPT, CHECKPOINTS_KEPT = _kept("checkpoint_writes"), _kept("checkpoints")
