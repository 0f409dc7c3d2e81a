"""`corral agent`: manage agents, their instructions and permissions."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Fields
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, USD, read_body
from corral.cli.render import format_age, format_field
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd

COLUMNS = [
    Column("NAME", lambda agent: agent.name),
    Column("STATE", lambda agent: agent.state, is_state=True),
    Column("ROLE", lambda agent: agent.role),
    Column("PROVIDER", lambda agent: agent.provider),
    Column("MODEL", lambda agent: agent.model, drop=1),
    Column("VERSION", lambda agent: agent.version),
    Column("ID", lambda agent: agent.id),
    Column("COMMAND", lambda agent: agent.command, shrink="truncate"),
]

VERSIONS = [
    Column("VERSION", lambda version: version.number),
    Column("SINCE", lambda version: format_age(version.created_at)),
    Column("BY", lambda version: version.created_by),
    Column("ROLE", lambda version: version.role),
    Column("PROVIDER", lambda version: version.provider),
    Column("MODEL", lambda version: version.model, drop=1),
    Column("HASH", lambda version: version.hash[:12]),
]

GRANTS = [
    Column("TOOL", lambda grant: grant.tool),
    Column("RULE", lambda grant: "allowed" if grant.allowed else "denied"),
    Column("SINCE", lambda grant: format_age(grant.updated_at)),
    Column("BY", lambda grant: grant.updated_by),
]


def _limits(content: Any) -> str | None:
    limits = content.limits
    parts = (
        (limits.budget_micros, format_usd, "per run"),
        (limits.timeout_ms, format_duration, "per run"),
        (limits.idle_ms, format_duration, "idle"),
        (limits.max_runs, str, "concurrent runs"),
    )
    texts = [f"{format(value)} {unit}" for value, format, unit in parts if value is not None]
    return ", ".join(texts) or None


FIELDS: Fields = (
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
    ("created at", lambda agent: format_field("created_at", agent.created_at)),
    ("updated at", lambda agent: format_field("updated_at", agent.updated_at)),
)


def _tool_fields(grants: Sequence[Any]) -> Fields:
    """Return the allowed and denied tools. As soon as one tool is allowed, only those are."""
    allowed = ", ".join(rule.tool for rule in grants if rule.allowed) or "all"
    denied = ", ".join(rule.tool for rule in grants if not rule.allowed) or None
    return [("allowed tools", lambda _: allowed), ("denied tools", lambda _: denied)]


TEXT_OPTIONS = ("provider", "command", "role", "model", "instructions", "workspace")
LIMIT_OPTIONS = ("timeout_ms", "idle_ms", "max_runs", "budget_micros")


@click.group("agent", cls=CommandGroup, help="Manage agents, their instructions and permissions.")
def command() -> None:
    pass


def content_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the content of an agent version."""
    for add_option in (
        click.option(
            "--max-runs", type=int, help="Maximum number of concurrent runs; 0 removes the limit."
        ),
        click.option(
            "--idle-timeout",
            "idle_ms",
            type=DURATION,
            help="Stop a run when it has been idle for this time.",
        ),
        click.option("--timeout", "timeout_ms", type=DURATION, help="Maximum time for a run."),
        click.option("--budget", "budget_micros", type=USD, help="Maximum cost of a run."),
        click.option("--workspace", metavar="DIR", help="Working directory of the agent."),
        click.option(
            "--instructions", metavar="TEXT|@FILE", help="Instructions that precede every prompt."
        ),
        click.option("--model", help="Model to use."),
        click.option(
            "--role",
            help="Role: a built-in one such as builder or reviewer, or your own.",
        ),
        click.option(
            "--command",
            metavar="CMD",
            help="Command to run instead of a provider. It gets the prompt on standard input and "
            "in CORRAL_PROMPT.",
        ),
        click.option("--provider", help="Agent CLI: claude, codex and so on."),
    ):
        function = add_option(function)
    return function


def content_changes(options: dict[str, Any], limits: Any = None) -> dict[str, Any]:
    """Convert the given options to arguments of the API; an empty text clears a field."""
    from msgspec.structs import asdict

    content: dict[str, Any] = {
        name: options[name] or None for name in TEXT_OPTIONS if options[name] is not None
    }
    if content.get("instructions"):
        content["instructions"] = read_body(content["instructions"], False)
    changes = {name: options[name] or None for name in LIMIT_OPTIONS if options[name] is not None}
    if changes:
        content["limits"] = (asdict(limits) if limits else {}) | changes
    return content


@command.command(
    examples=[
        "corral agent create ada --provider claude --role builder",
        'corral agent create lint --command "./lint.sh" --timeout 5m',
    ]
)
@click.argument("name")
@content_options
@click.option("--admin", is_flag=True, help="Allow the agent to change Corral's configuration.")
@pass_app
def create(app: App, /, name: str, admin: bool, **options: Any) -> None:
    """Create an agent. A built-in role has its own instructions."""
    agent = app.store.agents.create(name, admin=admin, **content_changes(options))
    app.report(f"Created agent {agent.name} ({agent.id}).", agent)


@command.command("list")
@click.option("--retired", is_flag=True, help="Include retired agents.")
@paging_options
@pass_app
def list_(app: App, retired: bool, after: str | None, limit: int) -> None:
    """List agents by name."""
    page = app.store.agents.list(retired=retired, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No agents. Create one with `corral agent create NAME`.")


@command.command()
@click.argument("agent")
@click.option("--version", type=int, help="Show this version (default: the current one).")
@pass_app
def show(app: App, agent: str, version: int | None) -> None:
    """Show an agent, by name or id."""
    agents = app.store.agents
    record = agents.get(agent) if version is None else agents.version(agent, version)
    grants = agents.grants(agent).items
    fields = [field for field in FIELDS if hasattr(record, field[0].replace(" ", "_"))]
    app.show(record, [*fields, *(_tool_fields(grants) if version is None else [])])


@command.command()
@click.argument("agent")
@content_options
@click.option(
    "--admin/--no-admin",
    default=None,
    help="Allow the agent to change Corral's configuration, or not.",
)
@pass_app
def edit(app: App, /, agent: str, admin: bool | None, **options: Any) -> None:
    """Change an agent; this creates a new version.

    Options that are not given keep their values; an empty text clears a value.
    """
    before = app.store.agents.get(agent)
    changes = content_changes(options, before.limits)
    if admin is not None:
        changes["admin"] = admin
    after = app.store.agents.edit(before.id, **changes)
    if after.version == before.version and after.admin == before.admin:
        sentence = f"No changes; {after.name} is at version {after.version}."
    else:
        sentence = f"Changed {after.name}, now at version {after.version}."
    app.report(sentence, after)


@command.command()
@click.argument("agent")
@paging_options
@pass_app
def versions(app: App, agent: str, after: str | None, limit: int) -> None:
    """List the versions of an agent, newest first."""
    page = app.store.agents.versions(agent, after=after, limit=limit)
    app.show_page(page, VERSIONS, empty="")


@command.command(
    examples=["corral agent grant ada 'Bash(git *)'", "corral agent grant ada WebFetch --deny"]
)
@click.argument("agent")
@click.argument("tool")
@click.option("--deny", is_flag=True, help="Deny the tool; a denial overrides other grants.")
@pass_app
def grant(app: App, agent: str, tool: str, deny: bool) -> None:
    """Allow an agent to use TOOL: a name or a pattern such as 'Bash(git *)' or 'mcp__*'."""
    granted = app.store.agents.grant(agent, tool, allow=not deny)
    app.report(f"{agent} {'may not' if deny else 'may'} use {tool}.", granted)


@command.command()
@click.argument("agent")
@click.argument("tool")
@pass_app
def revoke(app: App, agent: str, tool: str) -> None:
    """Remove the rule for TOOL."""
    revoked = app.store.agents.revoke(agent, tool)
    grants = app.store.agents.grants(agent).items
    is_limited = any(rule.allowed and not rule.tool.startswith("host:") for rule in grants)
    effect = "Only granted tools are allowed" if is_limited else "Tools not denied are allowed"
    app.report(f"Removed the rule of {agent} for {tool}. {effect}.", revoked)


@command.command()
@click.argument("agent")
@pass_app
def grants(app: App, agent: str) -> None:
    """List the tool rules of an agent."""
    page = app.store.agents.grants(agent)
    app.show_page(page, GRANTS, empty=f"No rules; {agent} may use all tools.")


@command.command("check")
@click.argument("agent")
@click.argument("tool")
@pass_app
def check(app: App, agent: str, tool: str) -> int:
    """Check whether an agent may use TOOL, such as 'Bash(git push)'; exit with 1 if not."""
    allowed = app.store.agents.allows(agent, tool)
    app.report(f"{agent} {'may' if allowed else 'may not'} use {tool}.", {"allowed": allowed})
    return 0 if allowed else 1


@command.command()
@click.argument("agent")
@pass_app
def retire(app: App, agent: str) -> None:
    """Retire an agent: it gets no more work, and its data is kept."""
    retired = app.store.agents.retire(agent)
    app.report(f"Retired {retired.name}.", retired)


@command.command()
@click.argument("agent")
@pass_app
def restore(app: App, agent: str) -> None:
    """Restore a retired agent."""
    restored = app.store.agents.restore(agent)
    app.report(f"Restored {restored.name}.", restored)
