from typing import Any

import click

from corral.interfaces.cli import render
from corral.interfaces.cli.app import App, Columns, Verb, paging, pass_app
from corral.rooms.runs.model import Run


def shown_state(run: Any) -> str:
    """What it waits for says more than that it is running."""
    return str(run.attention or run.state)


def _age(at: int | None) -> str | None:
    return None if at is None else render.ago(at)


def _exit(run: Run) -> str | None:
    if run.exit_code is not None:
        return str(run.exit_code)
    return f"signal {run.signal}" if run.signal is not None else None


LIVE: Columns = (
    ("ID", lambda run: run.id),
    ("STATE", shown_state),
    ("NAME", lambda run: run.name),
    ("AGENT", lambda run: None if run.provider == "plain" else run.provider),
    ("WHAT", lambda run: run.what),
    ("PID", lambda run: run.pid),
    ("STARTED", lambda run: _age(run.started_at)),
)
ALL: Columns = (
    *LIVE,
    ("ENDED", lambda run: _age(run.ended_at)),
    ("EXIT", _exit),
    ("REASON", lambda run: run.reason),
)


@click.command("ps", cls=Verb)
@click.option("-a", "--all", "all_of_them", is_flag=True, help="Those that are over, too.")
@click.option("--project", metavar="DIR", help="Only those of a project.")
@click.option("--state", metavar="S", help="Only those in a state.")
@paging
@pass_app
def command(
    app: App,
    all_of_them: bool,
    project: str | None,
    state: str | None,
    after: str | None,
    limit: int,
) -> None:
    """List runs, newest first; each was looked at now."""
    app.store.runs.recover()
    page = app.store.runs.list(
        project=app.project_id(project),
        state=state,
        live=not all_of_them and state is None,
        after=after,
        limit=limit,
    )
    live = all(run.is_live for run in page.items)
    app.show_page(
        page, LIVE if live else ALL, empty="Nothing runs; start something with `corral run`."
    )
