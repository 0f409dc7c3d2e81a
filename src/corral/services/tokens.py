"""Access tokens: create them for an agent or a project, and identify their bearer."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import AgentState
from corral.domain.projects import ops as projects
from corral.domain.tokens import ops
from corral.domain.tokens.model import FULL, READ, NewToken
from corral.kernel.errors import NotFound, Refused

if TYPE_CHECKING:
    from corral.db.database import Database


TOKEN_CHECK_SECONDS = 15.0
"""How often a stream checks that its token is still valid."""


class TokenIdentity(msgspec.Struct, frozen=True):
    """The bearer of a token, and what the token permits."""

    id: str
    name: str
    scope: str
    """full, read, or agent:ID."""
    actor: str
    """The actor that events record: token:NAME, or agent:NAME."""
    agent: str | None
    """The name of the agent that the token is limited to."""
    expires_at: int | None
    project_id: str | None = None
    """The project that an agent's token is limited to."""

    @property
    def may_write(self) -> bool:
        return self.scope != READ

    @property
    def key_namespace(self) -> str:
        """The namespace of the bearer's idempotency keys.

        Agents of several runs may use one person's token: each has its own keys.
        """
        return f"{self.id} {self.scope}"


def create_token(
    tx: Tx,
    name: str,
    *,
    scope: str = FULL,
    ttl_ms: int | None = None,
    project: str | None = None,
) -> NewToken:
    """Create a token: full, read, or agent:NAME for what one agent may do.

    An agent's token may be limited to one project. The result contains the secret, which is not
    stored and cannot be shown again.
    """
    if scope.startswith("agent:"):
        scope = f"agent:{agents.get(tx, scope.removeprefix('agent:')).id}"
    project_id = projects.get(tx, project).id if project else None
    return ops.create(tx, name, scope=scope, ttl_ms=ttl_ms, project_id=project_id)


def check_token(tx: Tx, value: str) -> TokenIdentity:
    """Return the bearer of a secret; raises Refused when it is unknown, expired or revoked."""
    token = ops.authenticate(tx, value)
    if token.agent_id is None:
        actor = f"token:{token.name}"
        return TokenIdentity(token.id, token.name, token.scope, actor, None, token.expires_at)
    agent = agents.get(tx, token.agent_id)
    if agent.state is not AgentState.ACTIVE:
        raise Refused(
            f"The token is not valid: its agent {agent.name} is {agent.state}.", id=token.id
        )
    return TokenIdentity(
        token.id,
        token.name,
        token.scope,
        f"agent:{agent.name}",
        agent.name,
        token.expires_at,
        token.project_id,
    )


def is_valid(tx: Tx, identity: TokenIdentity) -> bool:
    """Whether the token of a bearer is neither revoked nor expired."""
    token = ops.get(tx, identity.id)
    return token.ended_at is None and (identity.expires_at is None or identity.expires_at > tx.now)


def ensure_token_file(database: "Database", path: Path, *, name: str) -> str:
    """Return the secret in a private file; see `InternalTokens.ensure_file`."""
    from corral.adapters import secrets

    with suppress(NotFound, Refused):
        value = secrets.resolve_secret(f"file:{path}")
        database.read(partial(check_token, value=value))
        return value
    with suppress(NotFound):
        database.write(partial(ops.revoke, token=name), durable=True)
    value = database.write(partial(create_token, name=name), durable=True).value
    secrets.store_in_file(path.parent, path.name, value)
    return value
