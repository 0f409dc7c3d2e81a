from contextlib import suppress
from pathlib import Path

import msgspec

from corral.api.operation import Room, read, write
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import AgentState
from corral.domain.projects import ops as projects
from corral.domain.tokens import ops
from corral.domain.tokens.model import FULL, READ, NewToken
from corral.kernel.errors import NotFound, Refused


class Who(msgspec.Struct, frozen=True):
    """Who calls, as a token tells."""

    id: str
    name: str
    scope: str
    """full, read, or agent:ID."""
    actor: str
    """How the record of changes names them: token:NAME, or agent:NAME."""
    agent: str | None
    """The name of the one agent that the token is for."""
    expires_at: int | None
    project_id: str | None = None
    """The one project that an agent's token is for."""

    @property
    def may_write(self) -> bool:
        return self.scope != READ


def create(
    tx: Tx,
    name: str,
    *,
    scope: str = FULL,
    ttl_ms: int | None = None,
    project: str | None = None,
) -> NewToken:
    """Make a token: full, read, or agent:NAME for what one agent may do, perhaps in one project
    alone. Its secret is in the answer and nowhere else; it is never shown again."""
    if scope.startswith("agent:"):
        scope = f"agent:{agents.get(tx, scope.removeprefix('agent:')).id}"
    project_id = projects.get(tx, project).id if project else None
    return ops.create(tx, name, scope=scope, ttl_ms=ttl_ms, project_id=project_id)


def check(tx: Tx, value: str) -> Who:
    """Whose secret this is; Refused when it is nobody's, or not good any more."""
    token = ops.check(tx, value)
    if token.agent_id is None:
        actor = f"token:{token.name}"
        return Who(token.id, token.name, token.scope, actor, None, token.expires_at)
    agent = agents.get(tx, token.agent_id)
    if agent.state is not AgentState.ACTIVE:
        raise Refused(f"The agent {agent.name} is {agent.state}; so is its token.", id=token.id)
    actor = f"agent:{agent.name}"
    return Who(
        token.id,
        token.name,
        token.scope,
        actor,
        agent.name,
        token.expires_at,
        token.project_id,
    )


class Tokens(Room):
    """Who may call from outside, and what each may do."""

    noun = "token"

    create = write(create, durable=True)
    check = read(check)
    get = read(ops.get)
    list = read(ops.list_tokens, mode="one")
    revoke = write(ops.revoke, durable=True)
    note_use = write(ops.note_use, mode="one", repeatable=True)

    def in_file(self, path: Path, *, name: str) -> str:
        """The secret that a private file holds; a new one of full scope is made, and written there,
        when there is none, it is not good any more, or others could read it."""
        from corral.adapters import secrets

        with suppress(NotFound, Refused):
            value = secrets.resolve(f"file:{path}")
            self.check(value)
            return value
        with suppress(NotFound):
            self.revoke(name)
        value = self.create(name).value
        secrets.keep_in_file(path.parent, path.name, value)
        return value
