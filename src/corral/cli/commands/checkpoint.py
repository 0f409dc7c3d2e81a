"""`corral checkpoint`: manage checkpoints for agent frameworks."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age

COLUMNS = [
    Column("THREAD", lambda checkpoint: checkpoint.thread),
    Column("NAMESPACE", lambda checkpoint: checkpoint.ns),
    Column("ID", lambda checkpoint: checkpoint.id),
    Column("PARENT", lambda checkpoint: checkpoint.parent),
    Column("BYTES", lambda checkpoint: checkpoint.bytes),
    Column("SAVED", lambda checkpoint: format_age(checkpoint.at)),
]


@click.group("checkpoint", cls=CommandGroup, help="Manage checkpoints for agent frameworks.")
def command() -> None:
    pass


@command.command("list")
@click.option("--thread", help="Only list checkpoints of this thread.")
@paging_options
@pass_app
def list_(app: App, thread: str | None, after: str | None, limit: int) -> None:
    """List checkpoints, newest first."""
    page = app.store.checkpoints.list(thread=thread, after=after, limit=limit)
    suffix = "" if thread is None else f" of thread {thread}"
    app.show_page(page, COLUMNS, empty=f"No checkpoints{suffix}.")


@command.command()
@click.argument("thread")
@pass_app
def delete(app: App, thread: str) -> None:
    """Delete all checkpoints of THREAD."""
    count = app.store.checkpoints.delete(thread)
    app.report(
        f"Deleted {count} checkpoints of {thread}.", {"thread": thread, "checkpoints": count}
    )
