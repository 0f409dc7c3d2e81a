"""SQL of checkpoints and their writes."""

from corral.db.listing import Listing
from corral.db.retention import Retention
from corral.db.statement import Query, Statement, columns_of
from corral.domain.checkpoints.model import (
    Checkpoint,
    CheckpointHead,
    CheckpointInfo,
    CheckpointWrite,
)
from corral.kernel.pagination import LAST_NUMBER

LAST_CHECKPOINT_ID = chr(0x10FFFF)  # sorts after every id of a framework

_COLUMNS = "seq, thread, ns, id, parent, format, body, metadata, at"
_SELECT = f"SELECT {_COLUMNS} FROM checkpoints"

PUT = Statement("""
    INSERT INTO checkpoints (thread, ns, id, parent, format, body, metadata, caller, at)
    VALUES (:thread, :ns, :id, :parent, :format, :body, :metadata, :caller, :now)
    ON CONFLICT (thread, ns, id) DO UPDATE
    SET parent = excluded.parent, format = excluded.format, body = excluded.body,
        metadata = excluded.metadata, caller = excluded.caller
""")

# A checkpoint and its writes in one round trip. A row without a task is the checkpoint. In the
# other rows the columns hold the corresponding values of a write.
GET = Statement(f"""
    WITH named AS (
        SELECT coalesce(:id, (
            SELECT id FROM checkpoints WHERE thread = :thread AND ns = :ns ORDER BY id DESC LIMIT 1
        )) AS id
    )
    SELECT {_COLUMNS}, NULL AS task, NULL AS position, NULL AS path, NULL AS channel
    FROM checkpoints
    WHERE thread = :thread AND ns = :ns AND id = (SELECT id FROM named)
    UNION ALL
    SELECT seq, thread, ns, checkpoint, NULL, format, value, NULL, at, task, position, path, channel
    FROM checkpoint_writes
    WHERE thread = :thread AND ns = :ns AND checkpoint = (SELECT id FROM named)
""")

# Newest first: by the framework's ids within a namespace, by insertion across namespaces.
HISTORY_OF_NAMESPACE = Listing(
    Query(
        Checkpoint,
        f"""
        {_SELECT} WHERE thread = :thread AND ns = :ns AND id < :before ORDER BY id DESC LIMIT :limit
    """,
    ),
    start={"before": LAST_CHECKPOINT_ID},
    key=lambda checkpoint: (checkpoint.id,),
)


def _list_history(condition: str) -> Listing[Checkpoint]:
    query = Query(
        Checkpoint,
        f"""
        {_SELECT} WHERE {condition} seq < :position AND id < :before
        ORDER BY seq DESC LIMIT :limit
    """,
    )
    return Listing(query, start={"position": LAST_NUMBER}, key=lambda row: (row.seq,))


HISTORY = _list_history("")
HISTORY_OF_THREAD = _list_history("thread = :thread AND")

_INFO = columns_of(CheckpointInfo, bytes="length(body)")


def _list(condition: str) -> Listing[CheckpointInfo]:
    query = Query(
        CheckpointInfo,
        f"""
        SELECT {_INFO} FROM checkpoints WHERE {condition} seq < :position
        ORDER BY seq DESC LIMIT :limit
    """,
    )
    return Listing(query, start={"position": LAST_NUMBER}, key=lambda row: (row.seq,))


LIST = _list("")
LIST_OF_THREAD = _list("thread = :thread AND")

HEADS = Query(
    CheckpointHead, "SELECT ns, max(id) AS id FROM checkpoints WHERE thread = :thread GROUP BY ns"
)

# -- writes ----------------------------------------------------------------------------------------

_WRITE = columns_of(CheckpointWrite)

WRITES = Query(
    CheckpointWrite,
    f"""
    SELECT {_WRITE} FROM checkpoint_writes
    WHERE thread = :thread AND ns = :ns AND checkpoint {{is_listed}}
""",
)

_ADD_WRITE = """
    INSERT INTO checkpoint_writes
        (thread, ns, checkpoint, task, position, path, channel, format, value, at)
    VALUES (:thread, :ns, :checkpoint, :task, :position, :path, :channel, :format, :value, :now)
    ON CONFLICT (thread, ns, checkpoint, task, position)
"""

ADD_WRITE = Statement(f"{_ADD_WRITE} DO NOTHING")

SET_WRITE = Statement(
    f"{_ADD_WRITE} DO UPDATE SET path = excluded.path, channel = excluded.channel,"
    " format = excluded.format, value = excluded.value"
)

# -- copy and delete ------------------------------------------------------------------------------

COPY = Statement("""
    INSERT INTO checkpoints (thread, ns, id, parent, format, body, metadata, caller, at)
    SELECT :target, ns, id, parent, format, body, metadata, caller, :now
    FROM checkpoints WHERE thread = :source ORDER BY seq
    ON CONFLICT (thread, ns, id) DO NOTHING
""")

COPY_WRITES = Statement("""
    INSERT INTO checkpoint_writes
        (thread, ns, checkpoint, task, position, path, channel, format, value, at)
    SELECT :target, ns, checkpoint, task, position, path, channel, format, value, :now
    FROM checkpoint_writes WHERE thread = :source ORDER BY seq
    ON CONFLICT (thread, ns, checkpoint, task, position) DO NOTHING
""")

DELETE = Statement("DELETE FROM checkpoints WHERE thread = :thread RETURNING seq")
DELETE_WRITES = Statement("DELETE FROM checkpoint_writes WHERE thread = :thread")

_OLDER = "thread = :thread AND ns = :ns AND {id} < :newest AND NOT {id} {{is_listed}}"

DELETE_OLDER = Statement(f"DELETE FROM checkpoints WHERE {_OLDER.format(id='id')} RETURNING seq")
DELETE_OLDER_WRITES = Statement(
    f"DELETE FROM checkpoint_writes WHERE {_OLDER.format(id='checkpoint')}"
)

OF_CALLER = Statement("SELECT thread, ns, id FROM checkpoints WHERE caller = :caller")
DELETE_ONE = Statement("DELETE FROM checkpoints WHERE thread = :thread AND ns = :ns AND id = :id")
DELETE_WRITES_OF_ONE = Statement("""
    DELETE FROM checkpoint_writes WHERE thread = :thread AND ns = :ns AND checkpoint = :id
""")

# A thread is deleted as a whole, when nothing was added for the retention time: a checkpoint may
# need older ones.
_INACTIVE = """at < :before AND coalesce((
    SELECT newest.at FROM checkpoints AS newest WHERE newest.thread = {table}.thread
    ORDER BY newest.seq DESC LIMIT 1), 0) < :before"""


def _declare_retention(table: str) -> Retention:
    over = _INACTIVE.format(table=table)
    return Retention(table, setting="checkpoints.retention_ms", created="at", ended=over, key="seq")


WRITES_RETENTION, CHECKPOINTS_RETENTION = (
    _declare_retention("checkpoint_writes"),
    _declare_retention("checkpoints"),
)
