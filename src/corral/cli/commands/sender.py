import click

from corral.cli.app import App, Columns, Noun, paging, pass_app


def columns(app: App) -> Columns:
    """An account as people read it."""
    return [
        ("ID", lambda sender: sender.id),
        ("STATE", lambda sender: sender.state),
        ("PERSON", lambda sender: sender.person),
        ("SHOWS AS", lambda sender: sender.name),
        ("CHANNEL", lambda sender: app.channel_name(sender.channel_id)),
        ("PLATFORM'S ID", lambda sender: sender.platform_id),
    ]


@click.group("sender", cls=Noun, help="Accounts that speak on channels, and who is behind them.")
def command() -> None:
    pass


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """Accounts that have spoken, oldest first."""
    page = app.store.senders.list(after=after, limit=limit)
    app.show_page(page, columns(app), empty="Nobody has spoken yet.")


@command.command()
@click.argument("sender")
@click.option("--person", metavar="NAME", help="Who it is; several accounts may be one person.")
@click.option("--role", help="What they may do: owner, admin or member.")
@pass_app
def approve(app: App, sender: str, person: str | None, role: str | None) -> None:
    """Let SENDER talk (its id, or CHANNEL/ID); what it said while it waited is heard now."""
    known = app.store.senders.approve(sender, person=person, role=role)
    app.say(f"{known.id} is {known.person}, and may talk.", known)


@command.command()
@click.argument("sender")
@pass_app
def block(app: App, sender: str) -> None:
    """Turn away whatever SENDER says."""
    gone = app.store.senders.block(sender)
    app.say(f"{gone.called} is blocked.", gone)
