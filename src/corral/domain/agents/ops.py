"""Making agents, changing what they are, and saying which tools they may use."""

import re
from typing import Any

import msgspec

from corral.adapters.providers import registry
from corral.db.transitions import create as make
from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.agents import sql
from corral.domain.agents.model import (
    Agent,
    AgentState,
    AgentVersion,
    Content,
    Grant,
    Limits,
    check_limits,
)
from corral.domain.agents.roles import instructions_of
from corral.domain.agents.tools import allows as allows_by_rules
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import (
    MAX_BODY,
    MAX_NAME,
    check_int,
    clean_text,
    command_words,
    encode_json,
)
from corral.kernel.unset import KEEP

# As it stands in mailboxes and scopes (agent:NAME), and never to be taken for an id.
_NAME = re.compile(r"(?!agt_)[^\s:/\x00-\x1f\x7f]{1,100}")
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
    limits: Limits | dict[str, Any] | None = None,
) -> Agent:
    """Make an agent with its first version; Conflict when the name is taken.

    A role is any text. A built-in role brings its instructions when none are given.
    """
    check_name(name)
    content = _content(
        role=role,
        provider=provider,
        model=model,
        command=command,
        instructions=instructions or instructions_of(role),
        workspace=workspace,
        limits=check_limits(limits),
    )
    row = make(
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
        unless="(name)",
        note={"name": name, "version": 1},
    )
    if row is None:
        found = get(tx, name)
        how = "restore or edit it" if found.state is AgentState.RETIRED else "edit it"
        raise Conflict(
            f"There is an agent {name} already ({found.id}, {found.state}); {how}, or take "
            "another name.",
            id=found.id,
            name=name,
        )
    _add_version(tx, row.id, 1, content)
    return _whole(tx, row.id)


def find_id(tx: Tx, given: str) -> str:
    """Return the id of an agent, given by name or id, as a filter for a list."""
    return sql.IDS.find(tx, given) if given.startswith("agt_") else get(tx, given).id


def get(tx: Tx, agent: str) -> Agent:
    """An agent by its name, or by its id, which may be shortened."""
    if agent.startswith("agt_"):
        return _whole(tx, sql.IDS.resolve(tx, agent))
    found = tx.one(sql.BY_NAME, name=clean_text(agent, "The agent", most=MAX_NAME))
    if found is None:
        raise NotFound(
            f"There is no agent {agent!r}; `corral agent list` shows all there are.",
            name=agent,
            reason="unknown_agent",
        )
    return found


def list_agents(
    tx: Tx, *, retired: bool = False, after: str | None = None, limit: int = 50
) -> Page[Agent]:
    """Agents by name; retired ones only when asked for."""
    (name,) = decode_cursor(after, "")
    query = sql.LIST_ALL if retired else sql.LIST_ACTIVE
    rows = tx.all(query, after=name, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda agent: (agent.name,))


def edit(
    tx: Tx,
    agent: str,
    *,
    provider: str | None = KEEP,
    command: str | None = KEEP,
    role: str | None = KEEP,
    model: str | None = KEEP,
    instructions: str | None = KEEP,
    workspace: str | None = KEEP,
    admin: bool = KEEP,
    limits: Limits | dict[str, Any] | None = KEEP,
) -> Agent:
    """Change what an agent is: what is left out is kept, None clears it.

    Another content is a new version; runs go on showing the one that they used. The same content
    changes nothing. A new role brings its instructions where those of the old one were used.
    """
    id = get(tx, agent).id
    tx.serialize(f"agent:{id}")
    before = _whole(tx, id)
    given = {
        "provider": provider,
        "command": command,
        "role": role,
        "model": model,
        "instructions": instructions,
        "workspace": workspace,
        "limits": limits if limits is KEEP else check_limits(limits),
    }
    given = {name: value for name, value in given.items() if value is not KEEP}
    if "role" in given and "instructions" not in given:
        own = before.instructions not in (None, instructions_of(before.role))
        given["instructions"] = before.instructions if own else instructions_of(role)
    content = _content(**{**_fields(before.content), **given})
    changed = [name for name, value in _fields(content).items() if value != getattr(before, name)]
    rights = before.admin if admin is KEEP else bool(admin)
    if not changed and rights == before.admin:
        return before
    number = before.version + bool(changed)
    move(
        tx,
        sql.AGENTS,
        "edit",
        id,
        note={"version": number, "changed": changed + ["admin"] * (rights != before.admin)},
        version=number,
        admin=int(rights),
        updated_at=tx.now,
    )
    if changed:
        _add_version(tx, id, number, content)
    return _whole(tx, id)


def versions(
    tx: Tx, agent: str, *, after: str | None = None, limit: int = 50
) -> Page[AgentVersion]:
    """What an agent was before, newest first."""
    (before,) = decode_cursor(after, LAST_NUMBER)
    id = get(tx, agent).id
    rows = tx.all(sql.VERSIONS, agent_id=id, before=before, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda version: (version.number,))


def version(tx: Tx, agent: str, number: int) -> AgentVersion:
    """One version of an agent, as it was and stays."""
    found = get(tx, agent)
    asked = tx.one(sql.VERSION, agent_id=found.id, number=check_int(number, "The version"))
    if asked is None:
        raise NotFound(
            f"{found.name} has no version {number}; its versions go from 1 to {found.version}.",
            id=found.id,
            number=number,
        )
    return asked


def retire(tx: Tx, agent: str) -> Agent:
    """Give an agent no more work; everything about it is kept, and its name stays taken."""
    id = get(tx, agent).id
    move(tx, sql.AGENTS, "retire", id, updated_at=tx.now)
    return _whole(tx, id)


def restore(tx: Tx, agent: str) -> Agent:
    """Take a retired agent back, as it was."""
    id = get(tx, agent).id
    move(tx, sql.AGENTS, "restore", id, updated_at=tx.now)
    return _whole(tx, id)


def grant(tx: Tx, agent: str, tool: str, *, allow: bool = True) -> Grant:
    """Allow a tool, or all that a pattern fits (`Bash(git *)`, `mcp__*`); or deny it.

    Saying it again changes nothing. A denial beats whatever allows; once anything is allowed, only
    that is.
    """
    clean_text(tool, "The tool", most=2 * MAX_NAME)
    id = get(tx, agent).id
    tx.serialize(f"grants:{id}")
    known = tx.one(sql.GRANT, agent_id=id, tool=tool)
    if known is not None and known.allowed == allow:
        return known
    if known is None and tx.value(sql.COUNT_GRANTS, agent_id=id) >= MAX_GRANTS:
        raise Refused(
            f"{agent} has {MAX_GRANTS:,} rules for its tools, which is all it can have; "
            "use patterns.",
            agent_id=id,
        )
    said = tx.one(
        sql.SET_GRANT, agent_id=id, tool=tool, allowed=int(bool(allow)), now=tx.now, actor=tx.actor
    )
    assert said is not None
    tx.note("agent", "grant" if allow else "deny", id, data={"tool": tool})
    return said


def revoke(tx: Tx, agent: str, tool: str) -> Grant:
    """Take back what was said of a tool, a leave or a denial; then what is left decides."""
    id = get(tx, agent).id
    gone = tx.one(sql.DELETE_GRANT, agent_id=id, tool=clean_text(tool, "The tool"))
    if gone is None:
        raise NotFound(
            f"{agent} has no rule for {tool!r}; `corral agent show {agent}` lists its rules.",
            agent_id=id,
            tool=tool,
            reason="unknown_rule",
        )
    tx.note("agent", "revoke", id, data={"tool": tool})
    return gone


def grants(tx: Tx, agent: str) -> Page[Grant]:
    """What was said of an agent's tools, by their names."""
    return Page(tx.all(sql.GRANTS, agent_id=get(tx, agent).id, limit=MAX_GRANTS))


def allows(tx: Tx, agent: str, tool: str) -> bool:
    """Whether an agent may use a tool, or call it as in `Bash(git push)`."""
    clean_text(tool, "The tool", most=MAX_BODY)
    rules = grants(tx, agent).items
    return allows_by_rules(
        tool,
        # What the host may do for it is another matter, and narrows its own tools no further.
        [rule.tool for rule in rules if rule.allowed and not rule.tool.startswith("host:")],
        [rule.tool for rule in rules if not rule.allowed],
    )


def check_name(name: str) -> str:
    if not _NAME.fullmatch(clean_text(name, "The name", most=MAX_NAME)):
        raise Invalid(
            f"{name!r} is no name for an agent; take up to 100 characters without spaces, colons "
            "and slashes that do not begin with agt_.",
            name=name,
        )
    return name


def _content(*, limits: Limits, **texts: str | None) -> Content:
    checked = {
        name: clean_text(
            value, f"The {name}", most=MAX_NAME if name in ("role", "provider") else MAX_BODY
        )
        for name, value in texts.items()
        if value
    }
    content = Content(**checked, limits=limits)
    if content.command is not None:
        command_words(content.command)
    _check_provider(content)
    return content


def _check_provider(content: Content) -> None:
    if content.provider is not None and content.provider not in registry.names():
        raise Invalid(
            f"There is no provider {content.provider!r}; take one of "
            f"{', '.join(registry.names())}, or give any program as the command.",
            provider=content.provider,
            reason="unknown_provider",
        )


def _fields(content: Content) -> dict[str, Any]:
    return {name: getattr(content, name) for name in Content.__struct_fields__}


def _add_version(tx: Tx, id: str, number: int, content: Content) -> None:
    from hashlib import sha256

    fields = _fields(content)
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


def _whole(tx: Tx, id: str) -> Agent:
    found = tx.one(sql.GET, id=id)
    if found is None:
        raise sql.IDS.missing(id)
    return found
