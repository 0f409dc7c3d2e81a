"""`corral stop`: stop a run and all its processes."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION
from corral.kernel.errors import Refused

MARGIN_MS = 15_000
"""Time to wait beyond the grace period, for SIGKILL and for recording the end."""


@click.command(
    "stop", cls=Command, examples=["corral stop server", "corral stop run_01abc --grace-period 1m"]
)
@click.argument("run")
@click.option(
    "--grace-period",
    "--grace",
    "grace",
    type=DURATION,
    help="Time between SIGTERM and SIGKILL (default: that of the run).",
)
@click.option(
    "--reason",
    metavar="TEXT",
    default="stopped",
    show_default=True,
    help="Reason, for the event log.",
)
@click.option(
    "--timeout",
    type=DURATION,
    help="Maximum time to wait for the end of the run (default: grace period + 15s).",
)
@pass_app
def command(app: App, run: str, grace: int | None, reason: str, timeout: int | None) -> None:
    """Stop a run and all its processes, and wait until they have exited."""
    runs = app.store.runs
    stopping = runs.stop(run, reason=reason, grace_period_ms=grace)
    if timeout is None:
        timeout = (
            runs.get_launch(stopping.id).grace_period_ms if grace is None else grace
        ) + MARGIN_MS
    try:
        ended = runs.wait(stopping.id, timeout_ms=timeout)
    except Refused as error:
        raise Refused(
            f"{error.message} The stop was requested; check its state with `corral ps`.",
            **error.details,
        ) from None
    app.report(f"{ended.id} is {ended.state}.", ended)
