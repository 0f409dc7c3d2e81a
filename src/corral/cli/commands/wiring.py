from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import App, Columns, Noun, paging, pass_app


def columns(app: App) -> Columns:
    """A wiring as people read it: by names."""
    return [
        ("ID", lambda wiring: wiring.id),
        ("STATE", lambda wiring: wiring.state),
        ("WHO", lambda wiring: app.agent_name(wiring.agent_id)),
        ("HEARS", lambda wiring: where(app, wiring)),
        ("ON", lambda wiring: " ".join(filter(None, [wiring.trigger, wiring.pattern]))),
        ("FROM", lambda wiring: wiring.scope),
        ("UNHEARD", lambda wiring: wiring.unheard),
        ("SESSION", lambda wiring: wiring.mode),
        ("PRIORITY", lambda wiring: wiring.priority),
    ]


def where(app: App, wiring: Any) -> str:
    """What a wiring covers, in words."""
    if wiring.place_id is not None:
        return str(app.place_name(wiring.place_id))
    return f"all of {app.channel_name(wiring.channel_id)}"


def routes(app: App) -> Columns:
    """What each wiring makes of a text."""
    return [
        ("WHO", lambda route: app.agent_name(route.agent_id)),
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
        help="What wakes it: always, mention, sticky (then all that follows), pattern, command.",
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
    app.say(f"{agent} hears {where(app, made)} now, on {made.trigger} ({made.id}).", made)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also removed ones.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Which agents hear which places."""
    page = app.store.wirings.list(all=all_, after=after, limit=limit)
    app.show_page(
        page, columns(app), empty="No agent hears anything; `corral wiring add` lets one."
    )


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
    """Who would hear TEXT in PLACE, and why; nothing is stored.

    PLACE is a place's id, or CHANNEL/ID; one that nobody has spoken in yet is judged by the wirings
    of its whole channel.
    """
    found = app.store.wirings.try_out(place, text, known=not stranger, mentioned=mentioned)
    app.show_all(
        found, routes(app), empty="No agent hears that place; `corral wiring add` lets one."
    )
