import click

from corral.cli.app import DURATION, App, Verb, pass_app
from corral.kernel.errors import Refused

MARGIN_MS = 15_000


@click.command("stop", cls=Verb)
@click.argument("run")
@click.option("--grace", type=DURATION, metavar="10s", help="Between asking it to end and killing.")
@click.option("--reason", metavar="TEXT", default="stopped", help="For the record.")
@click.option("--timeout", type=DURATION, metavar="30s", help="How long to wait for its end.")
@pass_app
def command(app: App, run: str, grace: int | None, reason: str, timeout: int | None) -> None:
    """Stop a run and all its processes, and wait until they are gone."""
    runs = app.store.runs
    asked = runs.stop(run, reason=reason, grace_ms=grace)
    if timeout is None:
        timeout = (runs.launch_of(asked.id).grace_ms if grace is None else grace) + MARGIN_MS
    try:
        ended = runs.wait(asked.id, timeout_ms=timeout)
    except Refused as error:
        raise Refused(
            f"{error.message[:-1]}; it was asked to end, and `corral ps` will say when it has.",
            **error.details,
        ) from None
    app.say(f"{ended.id} is {ended.state}.", ended)
