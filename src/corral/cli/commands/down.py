"""`corral down`: stop the daemon."""

import click

from corral.adapters import daemon_process
from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION
from corral.kernel.errors import Refused


@click.command("down", cls=Command)
@click.option(
    "--timeout",
    type=DURATION,
    default="20s",
    show_default=True,
    help="Maximum time to wait for the daemon to exit.",
)
@click.option("--now", is_flag=True, help="Do not let the daemon finish its current work.")
@pass_app
def command(app: App, timeout: int, now: bool) -> None:
    """Stop the daemon of this store on this machine; runs continue."""
    daemon = daemon_process.find_daemon(app.local_store.db.url)
    app.close()
    if daemon is None:
        app.report("No daemon is running for this store and home.", None)
        return
    if not daemon_process.stop(daemon, seconds=timeout / 1_000, at_once=now):
        raise Refused(
            f"The daemon (pid {daemon.pid}) is still running. Stop it at once with `corral down "
            "--now`.",
            pid=daemon.pid,
        )
    app.report(f"Stopped the daemon (pid {daemon.pid}). Runs continue.", daemon)
