from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.locks.model import MOVES, Lock, Touch

_COLUMNS = """'lck_' || seq AS id, seq AS fence, state, project_id, path, mode, owner, run_id,
    reason, ttl_ms, lease_until, tells, created_at, held_at, ended_at, ended_by"""

LOCKS = StateTable(
    Lock,
    MOVES,
    table="locks",
    columns=_COLUMNS,
    key="seq",
    number_of="lck",
    project="project_id",
)

# What can meet a pattern: the locks on it and on what is above it, and those on what is below it.
NEAR = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND head {{is_one_of_heads}}
    UNION ALL
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND head > :low AND head < :high
""",
)

# In the order of the index of live locks: in any other, the past of the project might be read.
LIVE_OF_PROJECT = Query(
    Lock,
    f"""
    SELECT {_COLUMNS} FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL ORDER BY head, seq
""",
)

# Not those that somebody renews at this moment.
LAPSED = Statement("""
    SELECT seq FROM locks
    WHERE project_id = :project_id AND ended_at IS NULL AND lease_until <= :now
    ORDER BY head, seq {skip_locked}
""")

IS_WAITED_FOR = Statement("""
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

# Projects with locks that have run out.
DUE = Statement("""
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

TOUCH = Query(
    Touch,
    f"""
    INSERT INTO touches ({_TOUCH}) VALUES (:project_id, :path, :owner, 1, :now, :now)
    ON CONFLICT (project_id, path, owner) DO UPDATE SET count = touches.count + 1,
        last_at = excluded.last_at
    RETURNING {_TOUCH}
""",
)

# A path and what is below it lie together, but for names such as `src-old` beside `src/`.
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

FORGET_TOUCHES = Statement("DELETE FROM touches WHERE project_id = :project_id RETURNING seq")

KEPT = Retention(
    "locks",
    setting="locks.keep_ms",
    key="seq",
    born="created_at",
    over="ended_at < :before",
    project="project_id",
    imported="imported_at",
)
TOUCHES_KEPT = Retention(
    "touches",
    setting="touches.keep_ms",
    key="seq",
    born="first_at",
    over="last_at < :before",
    project="project_id",
    imported="imported_at",
)
