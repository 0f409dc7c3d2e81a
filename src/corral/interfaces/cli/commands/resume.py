import click

from corral.interfaces.cli.app import DURATION, App, Verb, is_terminal, pass_app


@click.command("resume", cls=Verb)
@click.argument("run", metavar="RUN | SESSION")
@click.argument("prompt", required=False)
@click.option("-d", "--detach", is_flag=True, help="Come back at once; the run goes on by itself.")
@click.option("--timeout", type=DURATION, metavar="10m", help="Stop it after this time.")
@click.option("--pty/--no-pty", default=None, help="Whether it gets a terminal.")
@pass_app
def command(
    app: App, run: str, prompt: str | None, detach: bool, timeout: int | None, pty: bool | None
) -> int:
    """Go on where a run or a session stopped; PROMPT says what to do next."""
    from corral.adapters.keepers import StartingKeeper
    from corral.interfaces.cli.staying import begin

    asked = app.store.runs.resume(
        run,
        prompt=prompt,
        timeout_ms=timeout,
        terminal=pty,
        claimed=True,
        watched=not detach and is_terminal(),
    )
    return begin(app, asked, StartingKeeper(), detach=detach)
