"""`corral recover`: detect dead runs."""

import click

from corral.cli.app import App, Columns, Command, pass_app

COLUMNS: Columns = (
    ("RUN", lambda recovery: recovery.run_id),
    ("WAS", lambda recovery: recovery.was),
    ("IS", lambda recovery: recovery.state),
    ("REASON", lambda recovery: recovery.reason),
)


@click.command("recover", cls=Command)
@pass_app
def command(app: App) -> None:
    """Check every active run, record those that have died, and list the changes.

    Every start of Corral does this too.
    """
    recovered = app.store.runs.recover()
    app.show_list(recovered, COLUMNS, empty="All runs are in the recorded state.")
