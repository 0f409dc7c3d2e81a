import os

import click

from corral.cli.app import App, Verb, pass_app
from corral.kernel.errors import Conflict


@click.command("attach", cls=Verb)
@click.argument("run")
@pass_app
def command(app: App, run: str) -> int:
    """Take over a run's terminal; Ctrl-\\ takes your hands off again, and the run goes on.

    Standard input must be a terminal. In scripts, use `corral logs -f RUN` to follow the output
    and `corral send RUN TEXT` to type a line.
    """
    from corral.adapters import process
    from corral.cli import foreground
    from corral.domain.runs.model import Mode

    found = app.store.runs.refreshed(app.store.runs.get(run))
    if not found.is_live:
        raise Conflict(f"{found.id} is {found.state}; `corral logs {found.id}` shows its output.")
    if found.host != process.host():
        raise Conflict(f"{found.id} runs on {found.host}; attach to it there.")
    if found.mode is not Mode.PTY:
        raise Conflict(f"{found.id} has no terminal; `corral logs -f {found.id}` shows its output.")
    if not os.isatty(0):
        raise Conflict(
            f"Cannot attach to {found.id}: standard input is not a terminal. Use `corral logs -f "
            f"{found.id}` to follow its output, or `corral send {found.id} TEXT` to type a line."
        )
    return foreground.stay(app, found, split=False)
