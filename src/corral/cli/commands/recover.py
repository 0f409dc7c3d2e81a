"""`corral recover`: record dead runs and start queued ones."""

import click

from corral.cli.click_classes import Command
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app

COLUMNS: Columns = (
    Column("RUN", lambda recovery: recovery.run_id),
    Column("WAS", lambda recovery: recovery.was),
    Column("IS", lambda recovery: recovery.state),
    Column("REASON", lambda recovery: recovery.reason, shrink="truncate", drop=1),
)


@click.command("recover", cls=Command)
@pass_app
def command(app: App) -> None:
    """Record the end of dead runs, start queued runs that are due, and list the changes.

    The daemon does this when it starts and while it runs. Without a daemon, call it after a crash
    or a reboot.
    """
    recovered = app.store.runs.recover()
    app.show_list(recovered, COLUMNS, empty="All runs are in the recorded state.")
