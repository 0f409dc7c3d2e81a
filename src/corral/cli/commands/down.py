import click

from corral.adapters import daemon_process
from corral.cli.app import DURATION, App, Verb, pass_app
from corral.kernel.errors import Refused


@click.command("down", cls=Verb)
@click.option(
    "--timeout", type=DURATION, default="20s", metavar="20s", help="How long to wait for its end."
)
@click.option("--now", is_flag=True, help="Do not let it finish what it does.")
@pass_app
def command(app: App, timeout: int, now: bool) -> None:
    """End the daemon of this store on this machine. Runs go on without it."""
    daemon = daemon_process.find(app.store_here.db.url)
    app.close()
    if daemon is None:
        app.say("No daemon of this home serves this store.", None)
        return
    if not daemon_process.end(daemon, seconds=timeout / 1_000, at_once=now):
        raise Refused(
            f"The daemon (pid {daemon.pid}) has not ended yet; `corral down --now` does not let "
            "it finish.",
            pid=daemon.pid,
        )
    app.say(f"The daemon (pid {daemon.pid}) has ended; runs go on.", daemon)
