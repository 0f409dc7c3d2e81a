"""SQL of tokens."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import Retention
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement
from corral.domain.tokens.model import TRANSITIONS, Token

IDS = IdColumn("token", "tok", "tokens")
TOKENS = StatefulTable(Token, TRANSITIONS, table="tokens")

_SELECT = f"SELECT {TOKENS.columns} FROM tokens"

BY_HASH = Query(Token, f"{_SELECT} WHERE hash = :hash")

BY_NAME = Query(Token, f"{_SELECT} WHERE name = :name AND state = 'active'")

ACTIVE = Listing(
    Query(
        Token,
        f"{_SELECT} WHERE state = 'active' AND name > :after ORDER BY name LIMIT :limit",
    ),
    start={"after": ""},
    key=lambda token: (token.name,),
)

ALL = Listing(
    Query(Token, f"{_SELECT} WHERE id > :after ORDER BY id LIMIT :limit"),
    start={"after": ""},
    key=lambda token: (token.id,),
)

SET_USED = Statement("""
    UPDATE tokens SET used_at = :now WHERE id = :id AND coalesce(used_at, 0) < :before RETURNING id
""")

RETENTION = Retention(
    "tokens",
    setting="tokens.retention_ms",
    created="created_at",
    ended="coalesce(ended_at, expires_at) < :before",
)
