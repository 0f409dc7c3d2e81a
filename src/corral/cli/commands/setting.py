from typing import Any

import click
import msgspec

from corral.cli.app import App, Noun, pass_app
from corral.cli.render import as_text, readable
from corral.kernel.clock import format_duration, parse_duration
from corral.kernel.errors import Invalid


def shown_value(setting: Any) -> str:
    if setting.name.endswith("_ms") and isinstance(setting.value, list):
        return " ".join(map(format_duration, setting.value))
    return as_text(readable(setting.name, setting.value))


COLUMNS = [
    ("NAME", lambda setting: setting.name),
    ("VALUE", shown_value),
    ("FROM", lambda setting: setting.scope),
    ("MEANING", lambda setting: setting.help),
]


def scope_options(function: Any) -> Any:
    project = click.option("--project", metavar="ID|DIR", help="For one project.")
    agent = click.option("--agent", metavar="NAME", help="For one agent.")
    return project(agent(function))


def scope_of(app: App, project: str | None, agent: str | None) -> str:
    if project and agent:
        raise Invalid("Give --project or --agent, not both.")
    if project:
        return f"project:{app.project_id(project)}"
    return f"agent:{agent}" if agent else "global"


def parse_value(name: str, text: str) -> Any:
    """A value as people write it: 3, 10m, or a list such as '5s 10s 20s'."""
    if name.endswith("_ms") and text and text[-1].isalpha():
        parts = [parse_duration(part) for part in text.replace(",", " ").split()]
        return parts if " " in text.strip() or "," in text else parts[0]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


@click.group("setting", cls=Noun, help="Values you choose instead of the defaults.")
def command() -> None:
    pass


@command.command("set")
@click.argument("name")
@click.argument("value")
@scope_options
@pass_app
def set_(app: App, name: str, value: str, project: str | None, agent: str | None) -> None:
    """Choose a value: for everything, for one project or for one agent."""
    chosen = app.store.settings.set(
        name, parse_value(name, value), scope=scope_of(app, project, agent)
    )
    app.say(f"{chosen.name} is {shown_value(chosen)} ({chosen.scope}).", chosen)


@command.command()
@click.argument("name")
@scope_options
@pass_app
def unset(app: App, name: str, project: str | None, agent: str | None) -> None:
    """Take a choice back."""
    now = app.store.settings.unset(name, scope=scope_of(app, project, agent))
    app.say(f"{now.name} is {shown_value(now)} again ({now.scope}).", now)


@command.command()
@click.argument("name")
@scope_options
@pass_app
def get(app: App, name: str, project: str | None, agent: str | None) -> None:
    """The value that counts, and where it comes from."""
    setting = app.store.settings.get(name, agent=agent, project=app.project_id(project))
    app.show(setting, COLUMNS)


@command.command("list")
@scope_options
@pass_app
def list_(app: App, project: str | None, agent: str | None) -> None:
    """Every setting there is, with the value that counts."""
    page = app.store.settings.list(scope=scope_of(app, project, agent))
    app.show_page(page, COLUMNS, empty="")
