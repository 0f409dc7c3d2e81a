"""`corral setting`: show and change settings."""

from collections.abc import Callable
from typing import Any

import click
import msgspec

from corral.cli.click_classes import CommandGroup
from corral.cli.columns import Column, to_fields
from corral.cli.context import App, pass_app
from corral.cli.render import format_field, to_text
from corral.kernel.clock import format_duration, parse_duration
from corral.kernel.errors import Invalid


def format_value(setting: Any) -> str:
    """Format the value of a setting, with durations such as 10m."""
    if setting.name.endswith("_ms") and isinstance(setting.value, list):
        return " ".join(map(format_duration, setting.value))
    return to_text(format_field(setting.name, setting.value))


COLUMNS = [
    Column("NAME", lambda setting: setting.name),
    Column("VALUE", format_value),
    Column("FROM", lambda setting: setting.scope, drop=1),
    Column("DESCRIPTION", lambda setting: setting.help, shrink="wrap"),
]


def scope_options(text: str) -> Callable[[Any], Any]:
    """Add `--project` and `--agent`, the scope of a setting. `text` contains {scope}."""
    project = click.option("--project", metavar="ID|DIR", help=text.format(scope="project"))
    agent = click.option("--agent", metavar="NAME", help=text.format(scope="agent"))
    return lambda function: project(agent(function))


SHOW = "Show the values that apply to this {scope}."
CHANGE = "Change the value for this {scope} (default: globally)."


def resolve_scope(app: App, project: str | None, agent: str | None) -> str:
    """Return the scope given by the options; `global` without them."""
    if project and agent:
        raise Invalid("Give --project or --agent, not both.")
    if project:
        return f"project:{app.project_id(project)}"
    return f"agent:{agent}" if agent else "global"


def parse_value(name: str, text: str) -> Any:
    """Parse a value: JSON, a duration such as 10m, or a list such as '5s 10s 20s'."""
    if name.endswith("_ms") and text and text[-1].isalpha():
        parts = [parse_duration(part) for part in text.replace(",", " ").split()]
        return parts if " " in text.strip() or "," in text else parts[0]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


@click.group("setting", cls=CommandGroup, help="Show and change settings.")
def command() -> None:
    pass


@command.command(
    "set",
    examples=[
        "corral setting set mail.max_attempts 10",
        "corral setting set runs.retention_ms 7d --project .",
    ],
)
@click.argument("name")
@click.argument("value")
@scope_options(CHANGE)
@pass_app
def set_(app: App, name: str, value: str, project: str | None, agent: str | None) -> None:
    """Set a setting: globally, for one project, or for one agent."""
    setting = app.store.settings.set(
        name, parse_value(name, value), scope=resolve_scope(app, project, agent)
    )
    app.report(f"{setting.name} is {format_value(setting)} ({setting.scope}).", setting)


@command.command()
@click.argument("name")
@scope_options(CHANGE)
@pass_app
def unset(app: App, name: str, project: str | None, agent: str | None) -> None:
    """Reset a setting to its default, or to the value of the wider scope."""
    setting = app.store.settings.unset(name, scope=resolve_scope(app, project, agent))
    app.report(f"{setting.name} is {format_value(setting)} ({setting.scope}).", setting)


@command.command()
@click.argument("name")
@scope_options(SHOW)
@pass_app
def get(app: App, name: str, project: str | None, agent: str | None) -> None:
    """Show the effective value of a setting and its scope."""
    setting = app.store.settings.get(name, agent=agent, project=app.project_id(project))
    app.show(setting, to_fields(COLUMNS))


@command.command("list")
@scope_options(SHOW)
@pass_app
def list_(app: App, project: str | None, agent: str | None) -> None:
    """List all settings with their effective values."""
    page = app.store.settings.list(scope=resolve_scope(app, project, agent))
    app.show_page(page, COLUMNS, empty="")
