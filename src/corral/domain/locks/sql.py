"""SQL of locks and touches. `head` is the fixed part of a path before its first wildcard."""

from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.locks.model import MOVES, Lock, Touch

_COLUMNS = """'lck_' || seq AS id, seq AS fence, state, project_id, path, mode, owner, run_id,
    reason, ttl_ms, lease_until, tells, created_at, held_at, ended_at, ended_by"""

LOCKS = StatefulTable(
    Lock,
    MOVES,
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
    WHERE project_id = :project_id AND ended_at IS NULL AND head {{is_one_of_heads}}
    UNION ALL
    -- Below the path.
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND head > :low AND head < :high
""",
)

# In the order of the partial index of live locks, so that ended locks are never read.
LIVE_OF_PROJECT = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL ORDER BY head, seq
""",
)

# Skips rows that are locked: their owner is renewing them concurrently.
EXPIRED = Statement("""
    SELECT seq FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND lease_until <= :now
    ORDER BY head, seq {skip_locked}
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

LIVE_OF_OWNER = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE owner = :owner AND ended_at IS NULL AND lease_until > :now AND seq > :after
    ORDER BY seq LIMIT :limit
""",
)

PROJECTS_WITH_EXPIRED = Statement("""
    SELECT project_id FROM locks
    WHERE ended_at IS NULL AND lease_until <= :now ORDER BY lease_until LIMIT :limit
""")

LIVE = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE ended_at IS NULL AND lease_until > :now
      AND (project_id, head, seq) > (:project_id, :head, :seq)
    ORDER BY project_id, head, seq LIMIT :limit
""",
)

LIST_OF_PROJECT = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND lease_until > :now
      AND (head, seq) > (:head, :seq)
    ORDER BY head, seq LIMIT :limit
""",
)

ALL = Query(
    Lock, f"SELECT {_COLUMNS} FROM locks WHERE seq < :before ORDER BY seq DESC LIMIT :limit"
)

ALL_OF_PROJECT = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks WHERE project_id = :project_id AND seq < :before
    ORDER BY seq DESC LIMIT :limit
""",
)

_TOUCH = "project_id, path, owner, count, first_at, last_at"

ADD_TOUCH = Query(
    Touch,
    f"""
    INSERT INTO touches ({_TOUCH}) VALUES (:project_id, :path, :owner, 1, :now, :now)
    ON CONFLICT (project_id, path, owner) DO UPDATE SET count = touches.count + 1,
        last_at = excluded.last_at
    RETURNING {_TOUCH}
""",
)

# A path and everything below it, as one index range. The second predicate excludes names between
# them in sort order, such as `src-old` between `src` and `src/`.
_BELOW = "path < :high AND (path = :path OR path >= :below)"

TOUCHES = Query(
    Touch,
    f"""
    SELECT {_TOUCH} FROM touches
    WHERE project_id = :project_id AND path >= :path AND {_BELOW}
      AND (path, owner) > (:last_path, :last_owner)
    ORDER BY path, owner LIMIT :limit
""",
)

TOUCHES_OF_OWNER = Query(
    Touch,
    f"""
    SELECT {_TOUCH} FROM touches
    WHERE project_id = :project_id AND owner = :owner AND path > :last_path AND {_BELOW}
    ORDER BY path LIMIT :limit
""",
)

DELETE_TOUCHES = Statement("DELETE FROM touches WHERE project_id = :project_id RETURNING seq")

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
    "touches",
    setting="touches.retention_ms",
    key="seq",
    created="first_at",
    ended="last_at < :before",
    project="project_id",
    imported="imported_at",
)
