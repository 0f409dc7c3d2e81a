import click

from corral.cli.app import App, Columns, Noun, paging, pass_app


def columns(app: App) -> Columns:
    """A place as people read it."""
    return [
        ("ID", lambda place: place.id),
        ("NAME", lambda place: place.called),
        ("CHANNEL", lambda place: app.channel_name(place.channel_id)),
        ("STATE", lambda place: place.state),
        ("DIRECT", lambda place: "yes" if place.direct else "no"),
        ("STRANGERS", lambda place: place.policy or "as its channel"),
        ("PLATFORM'S ID", lambda place: place.platform_id),
    ]


@click.group("place", cls=Noun, help="Chats on channels.")
def command() -> None:
    pass


@command.command("list")
@click.option("--channel", metavar="NAME", help="Only of this one.")
@paging
@pass_app
def list_(app: App, channel: str | None, after: str | None, limit: int) -> None:
    """Places that were heard of."""
    page = app.store.places.list(channel=channel, after=after, limit=limit)
    app.show_page(page, columns(app), empty="No place was heard of yet.")


@command.command()
@click.argument("place")
@pass_app
def show(app: App, place: str) -> None:
    """One place: its id, or CHANNEL/ID with the platform's own id."""
    app.show(app.store.places.get(place))


@command.command("policy")
@click.argument("place")
@click.argument("policy")
@pass_app
def set_policy(app: App, place: str, policy: str) -> None:
    """Treat strangers in PLACE by POLICY: strict, ask, public, or channel for that of its own."""
    found = app.store.places.set_policy(place, None if policy == "channel" else policy)
    app.say(f"Strangers in {found.called}: {found.policy or 'as on its channel'}.", found)


@command.command()
@click.argument("place")
@pass_app
def block(app: App, place: str) -> None:
    """Hear and send nothing in PLACE any more."""
    found = app.store.places.block(place)
    app.say(f"{found.called} is blocked.", found)


@command.command()
@click.argument("place")
@pass_app
def unblock(app: App, place: str) -> None:
    """Hear and send in PLACE again."""
    found = app.store.places.unblock(place)
    app.say(f"{found.called} is open.", found)
