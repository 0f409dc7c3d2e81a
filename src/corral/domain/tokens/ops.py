"""Making tokens, telling whether one is good, and taking one back."""

import os
import re

from corral.db.transitions import create as create_row
from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.tokens import sql
from corral.domain.tokens.model import FULL, PREFIX, READ, NewToken, Token, TokenState
from corral.kernel.clock import MINUTE, YEAR
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import check_int

KEPT = sql.KEPT
LONGEST_MS = 10 * YEAR
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
    """Make a token. Its secret is in the answer and nowhere else; it is never shown again."""
    _check_name(name)
    if not _SCOPE.fullmatch(scope):
        raise Invalid(f"{scope!r} is no scope; write full, read or agent:NAME.", scope=scope)
    if project_id is not None and not scope.startswith("agent:"):
        raise Invalid("Only an agent's token is for one project; give an agent, too.")
    if ttl_ms is not None and not 1 <= check_int(ttl_ms, "The time") <= LONGEST_MS:
        raise Invalid("A token is good for 1 ms to 10 years.", ttl_ms=ttl_ms)
    if tx.one(sql.BY_NAME, name=name) is not None:
        raise _taken(name)
    value = PREFIX + os.urandom(32).hex()
    made = create_row(
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
        unless="(name) WHERE state = 'active'",
        note={"name": name, "scope": scope, "project": project_id},
    )
    if made is None:
        raise _taken(name)
    return NewToken(made, value)


def check(tx: Tx, value: str) -> Token:
    """The token of a secret; Refused when there is none, or it is not good any more."""
    found = tx.one(sql.BY_HASH, hash=_hash(value)) if _VALUE.fullmatch(value) else None
    if found is None:
        # The text is not repeated: it may be a secret of something else.
        raise Refused(
            "There is no such token; make one with `corral token create NAME`.",
            reason="unknown_token",
        )
    if found.state is not TokenState.ACTIVE:
        raise Refused(
            f"The token {found.name} was revoked; make a new one.", id=found.id, reason="revoked"
        )
    if found.expires_at is not None and found.expires_at <= tx.now:
        raise Refused(
            f"The token {found.name} has expired; make a new one.", id=found.id, reason="expired"
        )
    return found


def note_use(tx: Tx, id: str) -> bool:
    """Remember that a token is used now, to the minute. It is no event."""
    return bool(tx.run(sql.USED, id=id, now=tx.now, before=tx.now - MINUTE))


def get(tx: Tx, token: str) -> Token:
    """A token by its name, or by its id, which may be shortened."""
    if token.startswith("tok_"):
        return sql.TOKENS.get(tx, sql.IDS.resolve(tx, token))
    _check_name(token)
    found = tx.one(sql.BY_NAME, name=token)
    if found is None:
        raise NotFound(f"There is no token {token!r}; see `corral token list`.", name=token)
    return found


def list_tokens(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Token]:
    """Tokens by name; with `all` also those that were revoked, oldest first."""
    (key,) = decode_cursor(after, "")
    rows = tx.all(sql.ALL if all else sql.ACTIVE, after=key, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda token: (token.id if all else token.name,))


def revoke(tx: Tx, token: str) -> Token:
    """Let a token open nothing any more, from the next call on."""
    return move(tx, sql.TOKENS, "revoke", get(tx, token).id, ended_at=tx.now)


def _hash(value: str) -> str:
    from hashlib import sha256

    return sha256(value.encode()).hexdigest()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} is no name for a token; use letters, digits, dots, dashes and underscores, "
            "and begin with a letter.",
            name=name,
        )


def _taken(name: str) -> Conflict:
    return Conflict(
        f"There is a token {name!r} already; take another name, or revoke that one.", name=name
    )
