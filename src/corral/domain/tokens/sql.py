"""SQL of tokens."""

from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.statement import Query, Statement
from corral.db.transitions import StatefulTable
from corral.domain.tokens.model import MOVES, Token

_COLUMNS = (
    "id, name, state, scope, project_id, created_at, created_by, expires_at, used_at, ended_at"
)

IDS = IdColumn("token", "tok", "tokens")
TOKENS = StatefulTable(Token, MOVES, table="tokens", columns=_COLUMNS)

BY_HASH = Query(Token, f"SELECT {_COLUMNS} FROM tokens WHERE hash = :hash")

BY_NAME = Query(Token, f"SELECT {_COLUMNS} FROM tokens WHERE name = :name AND state = 'active'")

ACTIVE = Query(
    Token,
    f"""
    SELECT {_COLUMNS} FROM tokens WHERE state = 'active' AND name > :after
    ORDER BY name LIMIT :limit
""",
)

ALL = Query(Token, f"SELECT {_COLUMNS} FROM tokens WHERE id > :after ORDER BY id LIMIT :limit")

SET_USED = Statement("""
    UPDATE tokens SET used_at = :now WHERE id = :id AND coalesce(used_at, 0) < :before RETURNING id
""")

RETENTION = Retention(
    "tokens",
    setting="tokens.retention_ms",
    created="created_at",
    ended="coalesce(ended_at, expires_at) < :before",
)
