from collections.abc import Callable
from typing import Any

import click

from corral.interfaces.cli.app import App, Noun, paging, pass_app

COLUMNS = [
    ("ID", lambda wiring: wiring.id),
    ("STATE", lambda wiring: wiring.state),
    ("AGENT", lambda wiring: wiring.agent_id),
    ("HEARS", lambda wiring: wiring.place_id or f"all of {wiring.channel_id}"),
    ("ON", lambda wiring: " ".join(filter(None, [wiring.trigger, wiring.pattern]))),
    ("FROM", lambda wiring: wiring.scope),
    ("SESSION", lambda wiring: wiring.mode),
    ("PRIORITY", lambda wiring: wiring.priority),
]

ROUTES = [
    ("AGENT", lambda route: route.agent_id),
    ("HEARS IT", lambda route: "yes" if route.heard else "no"),
    ("BECAUSE", lambda route: route.reason),
    ("WIRING", lambda route: route.wiring_id),
]


MANNER = [
    click.option(
        "--on",
        "trigger",
        default="always",
        show_default=True,
        help="What wakes it: always, mention, sticky, pattern, command.",
    ),
    click.option("--pattern", help="The pattern, or the command's word."),
    click.option("--from", "scope", default="all", show_default=True, help="all, or known people."),
    click.option(
        "--unheard",
        default="drop",
        show_default=True,
        help="What does not wake it: drop, or keep it for the next message that does.",
    ),
    click.option(
        "--session", "mode", default="shared", show_default=True, help="shared, thread or agent."
    ),
    click.option(
        "--priority", type=int, default=0, show_default=True, help="Higher is asked first."
    ),
]


def manner(command: Callable[..., None]) -> Callable[..., None]:
    """How an agent hears, as options."""
    for option in reversed(MANNER):
        command = option(command)
    return command


@click.group("wiring", cls=Noun, help="Which agent hears which chats, and when it answers.")
def command() -> None:
    pass


@command.command()
@click.argument("agent")
@click.option("--place", metavar="PLACE", help="One place: its id, or CHANNEL/ID.")
@click.option("--channel", metavar="NAME", help="All places of a channel.")
@manner
@click.option("--project", metavar="ID|DIR", help="Where the agent works.")
@pass_app
def add(app: App, /, agent: str, project: str | None, **options: Any) -> None:
    """Let AGENT hear a place, or a whole channel, and answer there."""
    made = app.store.wirings.add(agent, project=app.project_id(project), **options)
    app.say(f"{agent} hears {made.place_id or 'the whole channel'} now ({made.id}).", made)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also removed ones.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Which agents hear which places."""
    page = app.store.wirings.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No agent hears anything; `corral wiring add` lets one.")


@command.command()
@click.argument("wiring")
@manner
@pass_app
def change(app: App, /, wiring: str, **options: Any) -> None:
    """Let an agent hear in another manner from now on; what is left out is as in `add`."""
    changed = app.store.wirings.change(wiring, **options)
    app.say(f"{changed.id} is changed: it hears on {changed.trigger}.", changed)


@command.command()
@click.argument("wiring")
@pass_app
def remove(app: App, wiring: str) -> None:
    """Let an agent hear a place no more."""
    gone = app.store.wirings.remove(wiring)
    app.say(f"{gone.id} is removed.", gone)


@command.command("try")
@click.argument("place")
@click.argument("text")
@click.option("--stranger", is_flag=True, help="As somebody whom nobody knows.")
@click.option("--mentioned", is_flag=True, help="As if the platform said that we are meant.")
@pass_app
def try_out(app: App, place: str, text: str, stranger: bool, mentioned: bool) -> None:
    """Who would hear TEXT in PLACE, and why; nothing is stored."""
    routes = app.store.wirings.try_out(place, text, known=not stranger, mentioned=mentioned)
    app.show_all(routes, ROUTES, empty="No agent is wired to that place.")
