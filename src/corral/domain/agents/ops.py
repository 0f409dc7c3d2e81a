"""Create, edit and retire agents; grant and deny tools."""

import re
from typing import Any

import msgspec

from corral.adapters.providers import registry
from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.agents import sql
from corral.domain.agents.model import (
    Agent,
    AgentContent,
    AgentLimits,
    AgentState,
    AgentVersion,
    ToolGrant,
    check_limits,
)
from corral.domain.agents.roles import get_instructions
from corral.domain.agents.tools import is_allowed
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import Page
from corral.kernel.unset import UNSET
from corral.kernel.validation import MAX_BODY, MAX_NAME, check_int, check_text, encode_json
from corral.kernel.words import split_command

# Names occur in mailboxes and scopes (agent:NAME) and must not look like ids.
_NAME = re.compile(r"(?!agt_)[^\s:/\x00-\x1f\x7f]{1,100}")
RESERVED_NAMES = ("nobody",)
"""An answer to the question which agent should listen in a place, beside the agents' names."""
MAX_GRANTS = 1_000


def create(
    tx: Tx,
    name: str,
    *,
    provider: str | None = None,
    command: str | None = None,
    role: str | None = None,
    model: str | None = None,
    instructions: str | None = None,
    workspace: str | None = None,
    admin: bool = False,
    limits: AgentLimits | dict[str, Any] | None = None,
) -> Agent:
    """Create an agent with its first version; raises Conflict when the name is taken.

    A role is any text. A built-in role provides the instructions when none are given.
    """
    check_name(name)
    content = _build_content(
        role=role,
        provider=provider,
        model=model,
        command=command,
        instructions=instructions or get_instructions(role),
        workspace=workspace,
        limits=check_limits(limits),
    )
    row = create_if_absent(
        tx,
        sql.AGENTS,
        {
            "id": tx.new_id("agt"),
            "name": name,
            "version": 1,
            "admin": int(bool(admin)),
            "created_at": tx.now,
            "updated_at": tx.now,
        },
        on_conflict="(name)",
        event_data={"name": name, "version": 1},
    )
    if row is None:
        existing = get(tx, name)
        advice = "Restore or edit it" if existing.state is AgentState.RETIRED else "Edit it"
        raise Conflict(
            f"The agent {name} already exists ({existing.id}, {existing.state}). {advice}, or "
            "choose another name.",
            id=existing.id,
            name=name,
        )
    _add_version(tx, row.id, 1, content)
    return _load(tx, row.id)


def find_id(tx: Tx, agent: str) -> str:
    """Return the id of an agent, given by name or id, as a filter for a list."""
    return sql.IDS.find(tx, agent) if agent.startswith("agt_") else get(tx, agent).id


def get(tx: Tx, agent: str) -> Agent:
    """Return an agent by its name, or by its id, which may be shortened."""
    if agent.startswith("agt_"):
        return _load(tx, sql.IDS.resolve(tx, agent))
    match = tx.first(sql.BY_NAME, name=check_text(agent, "The agent", max_bytes=MAX_NAME))
    if match is None:
        raise NotFound(
            f"No agent named {agent!r}. List agents with `corral agent list`.",
            name=agent,
            reason="unknown_agent",
        )
    return match


def get_active(tx: Tx, agent: str) -> Agent:
    """Return an agent that can be given work; raises Refused for a retired one."""
    current = get(tx, agent)
    if current.state is not AgentState.ACTIVE:
        raise Refused(
            f"{current.name} is retired. Restore it with `corral agent restore {current.name}`, or "
            "choose another agent.",
            agent_id=current.id,
            reason="agent_retired",
        )
    return current


def resolve_actor(tx: Tx, agent: str | None) -> str:
    """Return the actor: the named agent, or else the actor of the transaction."""
    return f"agent:{get(tx, agent).name}" if agent else tx.actor


def list_agents(
    tx: Tx, *, retired: bool = False, after: str | None = None, limit: int = 50
) -> Page[Agent]:
    """List agents by name; with `retired`, including retired ones."""
    return (sql.LIST_ALL if retired else sql.LIST_ACTIVE).page(tx, after=after, limit=limit)


def edit(
    tx: Tx,
    agent: str,
    *,
    provider: str | None = UNSET,
    command: str | None = UNSET,
    role: str | None = UNSET,
    model: str | None = UNSET,
    instructions: str | None = UNSET,
    workspace: str | None = UNSET,
    admin: bool = UNSET,
    limits: AgentLimits | dict[str, Any] | None = UNSET,
) -> Agent:
    """Edit an agent. Arguments that are left out keep their values, None clears them.

    New content creates a new version; runs keep the version that they used. Equal content changes
    nothing. A new built-in role replaces instructions that came from the old role.
    """
    id = get(tx, agent).id
    tx.serialize(f"agent:{id}")
    before = _load(tx, id)
    changes = {
        "provider": provider,
        "command": command,
        "role": role,
        "model": model,
        "instructions": instructions,
        "workspace": workspace,
        "limits": limits if limits is UNSET else check_limits(limits),
    }
    changes = {name: value for name, value in changes.items() if value is not UNSET}
    if "role" in changes and "instructions" not in changes:
        is_custom = before.instructions not in (None, get_instructions(before.role))
        changes["instructions"] = before.instructions if is_custom else get_instructions(role)
    content = _build_content(**{**_to_fields(before.content), **changes})
    changed = [
        name for name, value in _to_fields(content).items() if value != getattr(before, name)
    ]
    is_admin = before.admin if admin is UNSET else bool(admin)
    if not changed and is_admin == before.admin:
        return before
    number = before.version + bool(changed)
    transition(
        tx,
        sql.AGENTS,
        "edit",
        id,
        event_data={"version": number, "changed": changed + ["admin"] * (is_admin != before.admin)},
        version=number,
        admin=int(is_admin),
        updated_at=tx.now,
    )
    if changed:
        _add_version(tx, id, number, content)
    return _load(tx, id)


def list_versions(
    tx: Tx, agent: str, *, after: str | None = None, limit: int = 50
) -> Page[AgentVersion]:
    """List the versions of an agent, newest first."""
    return sql.VERSIONS.page(tx, after=after, limit=limit, agent_id=get(tx, agent).id)


def get_version(tx: Tx, agent: str, number: int) -> AgentVersion:
    """Return one version of an agent."""
    current = get(tx, agent)
    version = tx.first(sql.VERSION, agent_id=current.id, number=check_int(number, "The version"))
    if version is None:
        raise NotFound(
            f"{current.name} has no version {number}: its versions are 1 to {current.version}.",
            id=current.id,
            number=number,
        )
    return version


def retire(tx: Tx, agent: str) -> Agent:
    """Retire an agent: it gets no new work. Its history is kept and its name stays taken."""
    id = get(tx, agent).id
    transition(tx, sql.AGENTS, "retire", id, updated_at=tx.now)
    return _load(tx, id)


def restore(tx: Tx, agent: str) -> Agent:
    """Restore a retired agent."""
    id = get(tx, agent).id
    transition(tx, sql.AGENTS, "restore", id, updated_at=tx.now)
    return _load(tx, id)


def grant(tx: Tx, agent: str, tool: str, *, allow: bool = True) -> ToolGrant:
    """Allow or deny a tool, or all that match a pattern such as `Bash(git *)` or `mcp__*`.

    Idempotent. A denial overrides every permission. As soon as one tool is allowed, all others are
    denied.
    """
    check_text(tool, "The tool", max_bytes=2 * MAX_NAME)
    id = get(tx, agent).id
    tx.serialize(f"tool_grants:{id}")
    existing = tx.first(sql.GRANT, agent_id=id, tool=tool)
    if existing is not None and existing.allowed == allow:
        return existing
    if existing is None and tx.value(sql.COUNT_GRANTS, agent_id=id) >= MAX_GRANTS:
        raise Refused(
            f"{agent} has reached the limit of {MAX_GRANTS:,} tool rules. Use patterns instead.",
            agent_id=id,
        )
    stored = tx.one(
        sql.SET_GRANT, agent_id=id, tool=tool, allowed=int(bool(allow)), now=tx.now, actor=tx.actor
    )
    tx.emit("agent", "grant" if allow else "deny", id, data={"tool": tool})
    return stored


def revoke(tx: Tx, agent: str, tool: str) -> ToolGrant:
    """Remove the rule for a tool, whether it allows or denies."""
    id = get(tx, agent).id
    removed = tx.first(sql.DELETE_GRANT, agent_id=id, tool=check_text(tool, "The tool"))
    if removed is None:
        raise NotFound(
            f"{agent} has no rule for {tool!r}. List its rules with `corral agent show {agent}`.",
            agent_id=id,
            tool=tool,
            reason="unknown_rule",
        )
    tx.emit("agent", "revoke", id, data={"tool": tool})
    return removed


def list_grants(tx: Tx, agent: str) -> Page[ToolGrant]:
    """List the tool rules of an agent by tool."""
    return Page(tx.all(sql.GRANTS, agent_id=get(tx, agent).id, limit=MAX_GRANTS))


def is_tool_allowed(tx: Tx, agent: str, tool: str) -> bool:
    """Whether an agent may use a tool, or make a call such as `Bash(git push)`."""
    check_text(tool, "The tool", max_bytes=MAX_BODY)
    rules = list_grants(tx, agent).items
    return is_allowed(
        tool,
        # Permissions for host requests do not restrict the agent's own tools.
        [rule.tool for rule in rules if rule.allowed and not rule.tool.startswith("host:")],
        [rule.tool for rule in rules if not rule.allowed],
    )


def check_name(name: str) -> str:
    """Return a valid agent name; raises Invalid."""
    if not _NAME.fullmatch(check_text(name, "The name", max_bytes=MAX_NAME)):
        raise Invalid(
            f"Invalid agent name {name!r}: expected up to 100 characters without spaces, colons "
            "and slashes, not beginning with agt_.",
            name=name,
        )
    if name.lower() in RESERVED_NAMES:
        raise Invalid(
            f"The agent name {name!r} is reserved. Choose another name.",
            name=name,
            reason="reserved_name",
        )
    return name


def _build_content(*, limits: AgentLimits, **texts: str | None) -> AgentContent:
    checked = {
        name: check_text(
            value, f"The {name}", max_bytes=MAX_NAME if name in ("role", "provider") else MAX_BODY
        )
        for name, value in texts.items()
        if value
    }
    content = AgentContent(**checked, limits=limits)
    if content.command is not None:
        split_command(content.command)
    _check_provider(content)
    return content


def _check_provider(content: AgentContent) -> None:
    if content.provider is not None and content.provider not in registry.list_providers():
        raise Invalid(
            f"Unknown provider {content.provider!r}: use one of "
            f"{', '.join(registry.list_providers())}, or give any program as the command.",
            provider=content.provider,
            reason="unknown_provider",
        )


def _to_fields(content: AgentContent) -> dict[str, Any]:
    return {name: getattr(content, name) for name in AgentContent.__struct_fields__}


def _add_version(tx: Tx, id: str, number: int, content: AgentContent) -> None:
    from hashlib import sha256

    fields = _to_fields(content)
    fields["limits"] = encode_json(content.limits, "The limits")
    tx.run(
        sql.ADD_VERSION,
        agent_id=id,
        number=number,
        hash=sha256(msgspec.json.encode(content)).hexdigest(),
        now=tx.now,
        actor=tx.actor,
        **fields,
    )


def _load(tx: Tx, id: str) -> Agent:
    agent = tx.first(sql.GET, id=id)
    if agent is None:
        raise sql.IDS.not_found(id)
    return agent
