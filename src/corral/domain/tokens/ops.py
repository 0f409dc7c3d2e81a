"""Create, authenticate, list and revoke tokens."""

import os
import re

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.tokens import sql
from corral.domain.tokens.model import FULL, PREFIX, READ, NewToken, Token, TokenState
from corral.kernel.clock import MINUTE, YEAR
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import Page
from corral.kernel.validation import check_int

RETENTION = sql.RETENTION
MAX_TTL_MS = 10 * YEAR
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_SCOPE = re.compile(rf"{FULL}|{READ}|agent:agt_[0-9a-z]{{26}}")
_VALUE = re.compile(PREFIX + "[0-9a-f]{64}")


def create(
    tx: Tx,
    name: str,
    *,
    scope: str = FULL,
    ttl_ms: int | None = None,
    project_id: str | None = None,
) -> NewToken:
    """Create a token. The secret is only in the result; the store keeps its hash."""
    _check_name(name)
    if not _SCOPE.fullmatch(scope):
        raise Invalid(f"Invalid scope {scope!r}: expected full, read or agent:NAME.", scope=scope)
    if project_id is not None and not scope.startswith("agent:"):
        raise Invalid("Only an agent's token can be limited to a project. Give an agent as well.")
    if ttl_ms is not None and not 1 <= check_int(ttl_ms, "The time") <= MAX_TTL_MS:
        raise Invalid("Invalid lifetime of a token: expected 1 ms to 10 years.", ttl_ms=ttl_ms)
    if tx.first(sql.BY_NAME, name=name) is not None:
        raise _name_taken_error(name)
    value = PREFIX + os.urandom(32).hex()
    token = create_if_absent(
        tx,
        sql.TOKENS,
        {
            "id": tx.new_id("tok"),
            "name": name,
            "scope": scope,
            "project_id": project_id,
            "hash": _hash(value),
            "created_at": tx.now,
            "created_by": tx.actor,
            "expires_at": None if ttl_ms is None else tx.now + ttl_ms,
        },
        on_conflict="(name) WHERE state = 'active'",
        event_data={"name": name, "scope": scope, "project": project_id},
    )
    if token is None:
        raise _name_taken_error(name)
    return NewToken(token, value)


def authenticate(tx: Tx, value: str) -> Token:
    """Return the token of a secret; raises Refused when it is unknown, revoked or expired."""
    token = tx.first(sql.BY_HASH, hash=_hash(value)) if _VALUE.fullmatch(value) else None
    if token is None:
        # The given text is not repeated: it may be another secret.
        raise Refused(
            "Invalid token. Create one with `corral token create NAME`.", reason="unknown_token"
        )
    if token.state is not TokenState.ACTIVE:
        raise Refused(
            f"The token {token.name} is revoked. Create a new one.", id=token.id, reason="revoked"
        )
    if token.expires_at is not None and token.expires_at <= tx.now:
        raise Refused(
            f"The token {token.name} has expired. Create a new one.", id=token.id, reason="expired"
        )
    return token


def record_use(tx: Tx, id: str) -> bool:
    """Record that a token is used now, at most once a minute. It writes no event."""
    return bool(tx.run(sql.SET_USED, id=id, now=tx.now, before=tx.now - MINUTE))


def get(tx: Tx, token: str) -> Token:
    """Return a token by its name, or by its id, which may be shortened."""
    if token.startswith("tok_"):
        return sql.TOKENS.get(tx, sql.IDS.resolve(tx, token))
    _check_name(token)
    active = tx.first(sql.BY_NAME, name=token)
    if active is None:
        raise NotFound(
            f"No token named {token!r}. List tokens with `corral token list`.", name=token
        )
    return active


def list_tokens(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Token]:
    """List active tokens by name; with `all` all tokens, oldest first."""
    return (sql.ALL if all else sql.ACTIVE).page(tx, after=after, limit=limit)


def revoke(tx: Tx, token: str) -> Token:
    """Revoke a token; the next call with it is rejected."""
    return transition(tx, sql.TOKENS, "revoke", get(tx, token).id, ended_at=tx.now)


def _hash(value: str) -> str:
    from hashlib import sha256

    return sha256(value.encode()).hexdigest()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"Invalid token name {name!r}: expected letters, digits, dots, dashes and underscores, "
            "beginning with a letter.",
            name=name,
        )


def _name_taken_error(name: str) -> Conflict:
    return Conflict(
        f"The token {name!r} already exists. Choose another name, or revoke it.", name=name
    )
