"""`corral recover`: record dead runs and start queued ones."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, Columns, pass_app

COLUMNS: Columns = (
    ("RUN", lambda recovery: recovery.run_id),
    ("WAS", lambda recovery: recovery.was),
    ("IS", lambda recovery: recovery.state),
    ("REASON", lambda recovery: recovery.reason),
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
