"""`corral attach`: attach to the terminal of a run."""

import os

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.kernel.errors import Conflict


@click.command("attach", cls=Command, examples=["corral attach login", "corral attach run_01abc"])
@click.argument("run")
@pass_app
def command(app: App, run: str) -> int:
    """Attach to the terminal of a run. Detach with Ctrl-\\; the run continues.

    Standard input must be a terminal. In scripts, use `corral logs -f RUN` to follow the output
    and `corral send RUN TEXT` to type a line.
    """
    from corral.adapters.processes import process
    from corral.cli import foreground
    from corral.domain.runs.model import RunMode

    record = app.store.runs.refresh(app.store.runs.get(run))
    logs = f"corral logs {record.id}"
    if not record.is_live:
        raise Conflict(f"{record.id} is {record.state}. Show its output with `{logs}`.")
    if record.host != process.host():
        raise Conflict(f"{record.id} runs on {record.host}. Run `corral attach` on that machine.")
    if record.mode is not RunMode.PTY:
        raise Conflict(
            f"{record.id} has no terminal. Follow its output with `corral logs -f {record.id}`."
        )
    if not os.isatty(0):
        raise Conflict(
            f"Cannot attach to {record.id}: standard input is not a terminal. Use `corral logs -f "
            f"{record.id}` to follow its output, or `corral send {record.id} TEXT` to type a line."
        )
    return foreground.follow_run(app, record, split=False)
