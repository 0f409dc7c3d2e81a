import click

from corral.cli.app import App, Columns, Verb, pass_app

COLUMNS: Columns = (
    ("RUN", lambda found: found.run_id),
    ("WAS", lambda found: found.was),
    ("IS", lambda found: found.state),
    ("REASON", lambda found: found.reason),
)


@click.command("recover", cls=Verb)
@pass_app
def command(app: App) -> None:
    """Look at every run that is said to be going, and say what became of it."""
    found = app.store.runs.recover()
    app.show_all(found, COLUMNS, empty="Every run is as the store says.")
