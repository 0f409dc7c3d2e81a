"""`corral wait`: wait for a run to exit."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION


@click.command(
    "wait",
    cls=Command,
    examples=["corral wait build && corral run -- make deploy", "corral wait build --timeout 10m"],
)
@click.argument("run")
@click.option(
    "--timeout",
    type=DURATION,
    help="Maximum time to wait (default: no limit).",
)
@pass_app
def command(app: App, run: str, timeout: int | None) -> int:
    """Wait for a run to exit, and exit with its exit status."""
    from corral.cli.foreground import exit_status

    ended = app.store.runs.wait(run, timeout_ms=timeout)
    reason = f" ({ended.reason})" if ended.reason else ""
    denied = f", {ended.denied_text}" if ended.denied_text else ""
    retry = f" Retry with: {ended.retry_command}" if ended.retry_command else ""
    app.report(f"{ended.id} is {ended.state}{denied}{reason}.{retry}", ended)
    return exit_status(ended)
