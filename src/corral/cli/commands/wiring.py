"""`corral wiring`: choose which agents receive messages from which chats."""

from collections.abc import Callable
from typing import Any, NamedTuple

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app


def columns(app: App) -> Columns:
    """Return the columns of a wiring, with names instead of ids."""
    return [
        Column("ID", lambda wiring: wiring.id),
        Column("STATE", lambda wiring: wiring.state, is_state=True),
        Column("WHO", lambda wiring: app.agent_name(wiring.agent_id)),
        Column("PLACE", lambda wiring: covered(app, wiring), shrink="truncate"),
        Column("TRIGGER", lambda wiring: " ".join(filter(None, [wiring.trigger, wiring.pattern]))),
        Column("SENDERS", lambda wiring: wiring.scope),
        Column("UNMATCHED", lambda wiring: wiring.unmatched, drop=1),
        Column("SESSION", lambda wiring: wiring.mode),
        Column("PRIORITY", lambda wiring: wiring.priority, drop=2),
    ]


def covered(app: App, wiring: Any) -> str:
    """Describe what a wiring covers: one place, or all places of a channel."""
    if wiring.place_id is not None:
        return str(app.place_name(wiring.place_id))
    return f"all of {app.channel_name(wiring.channel_id)}"


def routes(app: App) -> Columns:
    """Return the columns of the routing decision of each wiring."""
    return [
        Column("WHO", lambda route: app.agent_name(route.agent_id)),
        Column("RECEIVES", lambda route: "yes" if route.wakes else "no"),
        Column("BECAUSE", lambda route: route.reason, shrink="truncate"),
        Column("WIRING", lambda route: route.wiring_id, drop=1),
    ]


class OptionRow(NamedTuple):
    """An option of `add` and `edit`; only `add` has its default."""

    names: tuple[str, ...]
    default: str | int | None
    help: str


ROUTING_OPTIONS = [
    OptionRow(
        ("--trigger",),
        "always",
        "Messages that start the agent: always, mention, sticky (a mention and everything "
        "after it), pattern or command.",
    ),
    OptionRow(("--pattern",), None, "Regular expression of the trigger, or name of the command."),
    OptionRow(
        ("--senders", "scope"),
        "all",
        "Whose messages count: all, or known (approved people only).",
    ),
    OptionRow(
        ("--unmatched",),
        "drop",
        "Messages that do not match the trigger: drop, or keep as context for the next match.",
    ),
    OptionRow(
        ("--session-mode", "mode"),
        "shared",
        "Sessions: shared (one per place), thread (one per thread) or agent (one for all places).",
    ),
    OptionRow(("--priority",), 0, "Priority; higher is matched first."),
]

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def routing_options(*, with_defaults: bool) -> Decorator:
    """Add the options that decide which messages start an agent, and in which session."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for row in reversed(ROUTING_OPTIONS):
            add_option = click.option(
                *row.names,
                type=int if isinstance(row.default, int) else str,
                default=row.default if with_defaults else None,
                show_default=with_defaults,
                help=row.help,
            )
            command = add_option(command)
        return command

    return decorate


@click.group(
    "wiring",
    cls=CommandGroup,
    help="Choose which agents receive messages from which chats.",
)
def command() -> None:
    pass


@command.command(
    examples=[
        "corral wiring add ada --channel team --trigger mention",
        "corral wiring add ada --place team/-1001234 --trigger pattern --pattern '^deploy'",
    ]
)
@click.argument("agent")
@click.option("--place", metavar="PLACE", help="One place: its id, or CHANNEL/PLATFORM-ID.")
@click.option("--channel", metavar="NAME", help="All places of this channel.")
@routing_options(with_defaults=True)
@click.option("--project", metavar="ID|DIR", help="Project that the agent works in.")
@pass_app
def add(app: App, /, agent: str, project: str | None, **options: Any) -> None:
    """Connect AGENT to a place or a channel: it receives messages and answers there."""
    wiring = app.store.wirings.add(agent, project=app.project_id(project), **options)
    app.report(
        f"Connected {agent} to {covered(app, wiring)}, trigger {wiring.trigger} ({wiring.id}).",
        wiring,
    )


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include removed wirings.")
@paging_options
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """List wirings."""
    page = app.store.wirings.list(all=all_, after=after, limit=limit)
    app.show_page(page, columns(app), empty="No wirings. Add one with `corral wiring add`.")


@command.command()
@click.argument("wiring")
@routing_options(with_defaults=False)
@pass_app
def edit(app: App, /, wiring: str, **options: Any) -> None:
    """Change the options of a wiring; options that are not given keep their values."""
    changes = {name: value for name, value in options.items() if value is not None}
    edited = app.store.wirings.change(wiring, **changes)
    app.report(f"Changed {edited.id}: trigger {edited.trigger}.", edited)


@command.command()
@click.argument("wiring")
@pass_app
def remove(app: App, wiring: str) -> None:
    """Remove a wiring."""
    removed = app.store.wirings.remove(wiring)
    app.report(f"Removed {removed.id}.", removed)


@command.command()
@click.argument("place")
@click.argument("text")
@click.option("--stranger", is_flag=True, help="Assume an unknown sender.")
@click.option("--mentioned", is_flag=True, help="Assume that the message mentions the bot.")
@pass_app
def test(app: App, place: str, text: str, stranger: bool, mentioned: bool) -> None:
    """Show which agents would receive TEXT in PLACE, and why; nothing is stored.

    PLACE is an id or CHANNEL/PLATFORM-ID. For an unknown place, the wirings of its channel apply.
    """
    decisions = app.store.wirings.preview(place, text, known=not stranger, mentioned=mentioned)
    app.show_list(
        decisions,
        routes(app),
        empty="No wirings for this place. Add one with `corral wiring add`.",
    )
