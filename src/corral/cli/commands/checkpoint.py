import click

from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago

COLUMNS = [
    ("THREAD", lambda kept: kept.thread),
    ("PART", lambda kept: kept.ns),
    ("ID", lambda kept: kept.id),
    ("PARENT", lambda kept: kept.parent),
    ("BYTES", lambda kept: kept.bytes),
    ("KEPT", lambda kept: ago(kept.at)),
]


@click.group("checkpoint", cls=Noun, help="States that frameworks keep of their threads.")
def command() -> None:
    pass


@command.command("list")
@click.option("--thread", help="Only those of a thread.")
@paging
@pass_app
def list_(app: App, thread: str | None, after: str | None, limit: int) -> None:
    """Checkpoints, newest first."""
    page = app.store.checkpoints.list(thread=thread, after=after, limit=limit)
    of = "" if thread is None else f" of {thread}"
    app.show_page(page, COLUMNS, empty=f"No checkpoint{of} is kept here.")


@command.command()
@click.argument("thread")
@pass_app
def delete(app: App, thread: str) -> None:
    """Forget all checkpoints of THREAD."""
    gone = app.store.checkpoints.delete(thread)
    app.say(f"{gone} checkpoints of {thread} are gone.", {"thread": thread, "checkpoints": gone})
