from collections.abc import Callable, Sequence
from typing import Any

import click

from corral.cli.app import DURATION, App, Columns, Noun, paging, pass_app, read_body
from corral.cli.render import ago, readable
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd

COLUMNS = [
    ("NAME", lambda agent: agent.name),
    ("STATE", lambda agent: agent.state),
    ("ROLE", lambda agent: agent.role),
    ("PROVIDER", lambda agent: agent.provider),
    ("MODEL", lambda agent: agent.model),
    ("VERSION", lambda agent: agent.version),
    ("ID", lambda agent: agent.id),
    ("COMMAND", lambda agent: agent.command),
]

VERSIONS = [
    ("VERSION", lambda version: version.number),
    ("SINCE", lambda version: ago(version.created_at)),
    ("BY", lambda version: version.created_by),
    ("ROLE", lambda version: version.role),
    ("PROVIDER", lambda version: version.provider),
    ("MODEL", lambda version: version.model),
    ("HASH", lambda version: version.hash[:12]),
]

GRANTS = [
    ("TOOL", lambda grant: grant.tool),
    ("RULE", lambda grant: "allowed" if grant.allowed else "denied"),
    ("SINCE", lambda grant: ago(grant.updated_at)),
    ("BY", lambda grant: grant.updated_by),
]


def _limits(content: Any) -> str | None:
    """What is limited at all, as people say it."""
    limits = content.limits
    parts = (
        (limits.budget_micros, format_usd, "a run"),
        (limits.timeout_ms, format_duration, "a run"),
        (limits.idle_ms, format_duration, "of silence"),
        (limits.max_runs, str, "runs at once"),
    )
    said = [f"{as_said(value)} {what}" for value, as_said, what in parts if value is not None]
    return ", ".join(said) or None


FIELDS: Columns = (
    ("id", lambda agent: agent.id),
    ("agent id", lambda version: version.agent_id),
    ("name", lambda agent: agent.name),
    ("state", lambda agent: agent.state),
    ("version", lambda agent: agent.version),
    ("number", lambda version: version.number),
    ("admin", lambda agent: "yes" if agent.admin else "no"),
    ("role", lambda agent: agent.role),
    ("provider", lambda agent: agent.provider),
    ("model", lambda agent: agent.model),
    ("command", lambda agent: agent.command),
    ("instructions", lambda agent: agent.instructions),
    ("workspace", lambda agent: agent.workspace),
    ("limits", _limits),
    ("created at", lambda agent: readable("created_at", agent.created_at)),
    ("updated at", lambda agent: readable("updated_at", agent.updated_at)),
)


def _rules(grants: Sequence[Any]) -> Columns:
    """What was said of its tools; once anything is allowed, only that is."""
    allowed = ", ".join(rule.tool for rule in grants if rule.allowed) or "all"
    denied = ", ".join(rule.tool for rule in grants if not rule.allowed) or None
    return [("allowed tools", lambda _: allowed), ("denied tools", lambda _: denied)]


TEXTS = ("provider", "command", "role", "model", "instructions", "workspace")


@click.group("agent", cls=Noun, help="Agents: who they are, what they are told, what they may.")
def command() -> None:
    pass


def content_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a version of an agent holds."""
    for option in (
        click.option("--max-runs", type=int, help="How many runs at the same time; 0: no limit."),
        click.option("--idle", "idle_ms", type=DURATION, help="Silence after which a run ends."),
        click.option("--timeout", "timeout_ms", type=DURATION, help="How long a run may take."),
        click.option("--budget", metavar="USD", type=float, help="What a run may spend."),
        click.option("--workspace", metavar="DIR", help="The folder that is its own."),
        click.option("--instructions", metavar="TEXT|@FILE", help="What it is told first."),
        click.option("--model", help="The model it asks for."),
        click.option("--role", help="builder, reviewer … or, with instructions, your own word."),
        click.option("--command", metavar="CMD", help="The program, where no provider knows it."),
        click.option("--provider", help="The kind of its program: claude, codex …"),
    ):
        function = option(function)
    return function


def given(options: dict[str, Any], limits: Any = None) -> dict[str, Any]:
    """The options that were given, as the library takes them; an empty text clears."""
    from msgspec.structs import asdict

    content: dict[str, Any] = {
        name: options[name] or None for name in TEXTS if options[name] is not None
    }
    if content.get("instructions"):
        content["instructions"] = read_body(content["instructions"], False)
    wanted = {name: options[name] for name in ("timeout_ms", "idle_ms", "max_runs")}
    if options["budget"] is not None:
        wanted["budget_micros"] = round(options["budget"] * 1_000_000)
    wanted = {name: value or None for name, value in wanted.items() if value is not None}
    if wanted:
        content["limits"] = (asdict(limits) if limits else {}) | wanted
    return content


@command.command()
@click.argument("name")
@content_options
@click.option("--admin", is_flag=True, help="It may change Corral itself.")
@pass_app
def create(app: App, /, name: str, admin: bool, **options: Any) -> None:
    """Make an agent called NAME; a built-in role brings its instructions."""
    agent = app.store.agents.create(name, admin=admin, **given(options))
    app.say(f"{agent.name} is agent {agent.id}.", agent)


@command.command("list")
@click.option("--retired", is_flag=True, help="Show retired ones too.")
@paging
@pass_app
def list_(app: App, retired: bool, after: str | None, limit: int) -> None:
    """Agents, by name."""
    page = app.store.agents.list(retired=retired, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No agent yet; `corral agent create NAME` makes one.")


@command.command()
@click.argument("agent")
@click.option("--version", type=int, help="As it was in this version.")
@pass_app
def show(app: App, agent: str, version: int | None) -> None:
    """One agent, by name or id."""
    agents = app.store.agents
    found = agents.get(agent) if version is None else agents.version(agent, version)
    rules = agents.grants(agent).items
    fields = [field for field in FIELDS if hasattr(found, field[0].replace(" ", "_"))]
    app.show(found, [*fields, *(_rules(rules) if version is None else [])])


@command.command()
@click.argument("agent")
@content_options
@click.option("--admin/--no-admin", default=None, help="It may change Corral itself.")
@pass_app
def edit(app: App, /, agent: str, admin: bool | None, **options: Any) -> None:
    """Change what an agent is; what is left out is kept, '' clears it. Old versions stay."""
    before = app.store.agents.get(agent)
    changes = given(options, before.limits)
    if admin is not None:
        changes["admin"] = admin
    after = app.store.agents.edit(before.id, **changes)
    same = after.version == before.version and after.admin == before.admin
    app.say(f"{after.name} {'stays' if same else 'is'} at version {after.version}.", after)


@command.command()
@click.argument("agent")
@paging
@pass_app
def versions(app: App, agent: str, after: str | None, limit: int) -> None:
    """What an agent was before, newest first."""
    page = app.store.agents.versions(agent, after=after, limit=limit)
    app.show_page(page, VERSIONS, empty="")


@command.command()
@click.argument("agent")
@click.argument("tool")
@click.option("--deny", is_flag=True, help="It may not, whatever else allows it.")
@pass_app
def grant(app: App, agent: str, tool: str, deny: bool) -> None:
    """Let an agent use TOOL, or all that a pattern fits: 'Bash(git *)', 'mcp__*'."""
    said = app.store.agents.grant(agent, tool, allow=not deny)
    app.say(f"{agent} {'may not' if deny else 'may'} use {tool}.", said)


@command.command()
@click.argument("agent")
@click.argument("tool")
@pass_app
def revoke(app: App, agent: str, tool: str) -> None:
    """Take back what `grant` said of TOOL."""
    gone = app.store.agents.revoke(agent, tool)
    left = app.store.agents.grants(agent).items
    limited = any(rule.allowed and not rule.tool.startswith("host:") for rule in left)
    effect = "only what is granted is allowed" if limited else "all that is not denied is allowed"
    app.say(f"{agent} has no rule for {tool} any more; {effect}.", gone)


@command.command()
@click.argument("agent")
@pass_app
def grants(app: App, agent: str) -> None:
    """What was said of an agent's tools."""
    page = app.store.agents.grants(agent)
    app.show_page(page, GRANTS, empty=f"Nothing was said of {agent}'s tools: all are allowed.")


@command.command()
@click.argument("agent")
@click.argument("tool")
@pass_app
def allows(app: App, agent: str, tool: str) -> int:
    """Whether an agent may use TOOL, as in 'Bash(git push)'; the exit code says it too."""
    allowed = app.store.agents.allows(agent, tool)
    app.say(f"{agent} {'may' if allowed else 'may not'} use {tool}.", {"allowed": allowed})
    return 0 if allowed else 1


@command.command()
@click.argument("agent")
@pass_app
def retire(app: App, agent: str) -> None:
    """Give an agent no more work; everything about it is kept."""
    retired = app.store.agents.retire(agent)
    app.say(f"{retired.name} is retired.", retired)


@command.command()
@click.argument("agent")
@pass_app
def restore(app: App, agent: str) -> None:
    """Take a retired agent back."""
    restored = app.store.agents.restore(agent)
    app.say(f"{restored.name} is back.", restored)
