"""SQL of locks and file touches.

`path_prefix` is the part of a pattern before its first wildcard. Two patterns can overlap only if
one prefix starts with the other.
"""

from corral.db.listing import Listing
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.locks.model import TRANSITIONS, FileTouch, Lock
from corral.kernel.pagination import LAST_NUMBER
from corral.kernel.path_patterns import get_literal_prefix

_COLUMNS = columns_of(Lock, id="'lck_' || seq", fence="seq")

LOCKS = StatefulTable(
    Lock,
    TRANSITIONS,
    table="locks",
    columns=_COLUMNS,
    key="seq",
    id_prefix="lck",
    project="project_id",
)

# The live locks that can overlap a pattern. The exact comparison follows in Python.
CANDIDATES = Query(
    Lock,
    f"""
    -- On the path itself and on the directories above it.
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND path_prefix {{is_one_of_prefixes}}
    UNION ALL
    -- Below the path.
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL
      AND path_prefix > :low AND path_prefix < :high
""",
)

# Sorted like the partial index of live locks, so that PostgreSQL uses it and reads no ended lock.
LIVE_OF_PROJECT = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL ORDER BY path_prefix, seq
""",
)

# skip_locked: a locked row is being renewed by its owner at this moment, so it has not expired.
EXPIRED = Statement("""
    SELECT seq FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND lease_until <= :now
    ORDER BY path_prefix, seq {skip_locked}
""")

HAS_WAITERS = Statement("""
    SELECT 1 FROM locks WHERE project_id = :project_id AND state = 'waiting' LIMIT 1
""")

COUNT_OF_OWNER = Statement("""
    SELECT count(*) FROM (
        SELECT 1 FROM locks WHERE owner = :owner AND ended_at IS NULL LIMIT :most
    ) AS own
""")

RENEW = Query(
    Lock,
    f"""
    UPDATE locks SET lease_until = :until, ttl_ms = :ttl_ms
    WHERE seq = :seq AND ended_at IS NULL AND lease_until > :now
    RETURNING {_COLUMNS}
""",
)

RENEW_OF_RUN = Statement("""
    UPDATE locks SET lease_until = :now + ttl_ms
    WHERE run_id = :run_id AND ended_at IS NULL AND lease_until > :now
      AND lease_until < :now + ttl_ms
    RETURNING seq
""")

LIVE_OF_RUN = Query(
    Lock, f"SELECT {_COLUMNS} FROM locks WHERE run_id = :run_id AND ended_at IS NULL"
)

PROJECTS_WITH_EXPIRED = Statement("""
    SELECT project_id FROM locks
    WHERE ended_at IS NULL AND lease_until <= :now ORDER BY lease_until LIMIT :limit
""")

# -- lists -------------------------------------------------------------------------------------


def _get_fence_key(lock: Lock) -> tuple[int]:
    return (lock.fence,)


def _get_path_key(lock: Lock) -> tuple[str, str, int]:
    return (lock.project_id, get_literal_prefix(lock.path), lock.fence)


LIVE_OF_OWNER = Listing(
    Query(
        Lock,
        f"""
    SELECT {_COLUMNS} FROM locks
    WHERE owner = :owner AND ended_at IS NULL AND lease_until > :now AND seq > :last
    ORDER BY seq LIMIT :limit
""",
    ),
    start={"last": 0},
    key=_get_fence_key,
)

LIVE = Listing(
    Query(
        Lock,
        f"""
    SELECT {_COLUMNS} FROM locks
    WHERE ended_at IS NULL AND lease_until > :now
      AND (project_id, path_prefix, seq) > (:last_project, :last_prefix, :last)
    ORDER BY project_id, path_prefix, seq LIMIT :limit
""",
    ),
    start={"last_project": "", "last_prefix": "", "last": 0},
    key=_get_path_key,
)

LIVE_IN_PROJECT = Listing(
    Query(
        Lock,
        f"""
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND lease_until > :now
      AND (path_prefix, seq) > (:last_prefix, :last)
    ORDER BY path_prefix, seq LIMIT :limit
""",
    ),
    start={"last_prefix": "", "last": 0},
    key=lambda lock: _get_path_key(lock)[1:],
)


def _newest_first(condition: str = "") -> Listing[Lock]:
    text = f"SELECT {_COLUMNS} FROM locks WHERE {condition} seq < :before ORDER BY seq DESC"
    query = Query(Lock, f"{text} LIMIT :limit")
    return Listing(query, start={"before": LAST_NUMBER}, key=_get_fence_key)


ALL = _newest_first()
ALL_OF_PROJECT = _newest_first("project_id = :project_id AND")

# -- file touches ------------------------------------------------------------------------------

_TOUCH = columns_of(FileTouch)

ADD_TOUCH = Query(
    FileTouch,
    f"""
    INSERT INTO file_touches ({_TOUCH}) VALUES (:project_id, :path, :owner, 1, :now, :now)
    ON CONFLICT (project_id, path, owner) DO UPDATE SET count = file_touches.count + 1,
        last_at = excluded.last_at
    RETURNING {_TOUCH}
""",
)

# A path and everything below it, as one index range. The second predicate excludes names between
# them in sort order, such as `src-old` between `src` and `src/`.
_BELOW = "path < :high AND (path = :path OR path >= :below)"

TOUCHES = Listing(
    Query(
        FileTouch,
        f"""
    SELECT {_TOUCH} FROM file_touches
    WHERE project_id = :project_id AND path >= :path AND {_BELOW}
      AND (path, owner) > (:last_path, :last_owner)
    ORDER BY path, owner LIMIT :limit
""",
    ),
    start={"last_path": "", "last_owner": ""},
    key=lambda touch: (touch.path, touch.owner),
)

TOUCHES_OF_OWNER = Listing(
    Query(
        FileTouch,
        f"""
    SELECT {_TOUCH} FROM file_touches
    WHERE project_id = :project_id AND owner = :owner AND path > :last_path AND {_BELOW}
    ORDER BY path LIMIT :limit
""",
    ),
    start={"last_path": ""},
    key=lambda touch: (touch.path,),
)

DELETE_TOUCHES = Statement("DELETE FROM file_touches WHERE project_id = :project_id RETURNING seq")

RETENTION = Retention(
    "locks",
    setting="locks.retention_ms",
    key="seq",
    created="created_at",
    ended="ended_at < :before",
    project="project_id",
    imported="imported_at",
)
TOUCHES_RETENTION = Retention(
    "file_touches",
    setting="file_touches.retention_ms",
    key="seq",
    created="first_at",
    ended="last_at < :before",
    project="project_id",
    imported="imported_at",
)
