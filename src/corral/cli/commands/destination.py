import click

from corral.cli.app import App, Columns, Noun, paging, pass_app


def columns(app: App) -> Columns:
    """A destination as people read it: by names."""
    return [
        ("ID", lambda destination: destination.id),
        ("STATE", lambda destination: destination.state),
        ("WHO", lambda destination: app.agent_name(destination.agent_id)),
        ("CALLS IT", lambda destination: destination.name),
        ("PLACE", lambda destination: app.place_name(destination.place_id)),
    ]


@click.group("destination", cls=Noun, help="Where agents may send to.")
def command() -> None:
    pass


@command.command()
@click.argument("agent")
@click.argument("place")
@click.option("--name", help="What the agent calls it.")
@pass_app
def grant(app: App, agent: str, place: str, name: str | None) -> None:
    """Let AGENT send to PLACE, at once."""
    made = app.store.destinations.grant(agent, place, name=name)
    app.say(
        f"{agent} may send to {app.place_name(made.place_id)}, which it calls {made.name}.", made
    )


@command.command("list")
@click.option("--agent", metavar="NAME", help="Only what this one may send to now.")
@paging
@pass_app
def list_(app: App, agent: str | None, after: str | None, limit: int) -> None:
    """Where agents may send to."""
    page = app.store.destinations.list(agent=agent, after=after, limit=limit)
    app.show_page(page, columns(app), empty="Nobody may send anywhere yet.")


@command.command()
@click.argument("agent")
@click.argument("destination")
@pass_app
def revoke(app: App, agent: str, destination: str) -> None:
    """Let AGENT send to DESTINATION no more, at once; what waits is refused."""
    gone = app.store.destinations.revoke(agent, destination)
    app.say(f"{agent} may not send to {app.place_name(gone.place_id)} any more.", gone)
