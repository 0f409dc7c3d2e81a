import click

from corral.cli.app import DURATION, App, Verb, pass_app


@click.command("wait", cls=Verb)
@click.argument("run")
@click.option("--timeout", type=DURATION, metavar="10m", help="How long to wait at the most.")
@pass_app
def command(app: App, run: str, timeout: int | None) -> int:
    """Wait for a run to end; exits as the run did."""
    from corral.cli.foreground import exit_code_of

    ended = app.store.runs.wait(run, timeout_ms=timeout)
    reason = f" ({ended.reason})" if ended.reason else ""
    denied = f", {ended.denied_text}" if ended.denied_text else ""
    retry = f" Try again with: {ended.retry_command}" if ended.retry_command else ""
    app.say(f"{ended.id} is {ended.state}{denied}{reason}.{retry}", ended)
    return exit_code_of(ended)
