from typing import Any

import click

from corral.interfaces.cli.app import App, Verb, pass_app
from corral.interfaces.cli.commands.run import run_options


@click.command("resume", cls=Verb)
@click.argument("run", metavar="RUN | SESSION")
@click.argument("prompt", required=False)
@run_options
@pass_app
def command(app: App, /, run: str, prompt: str | None, detach: bool, **given: Any) -> int:
    """Go on where a run or a session stopped; PROMPT says what to do next.

    What is not said anew is as it was. `-` reads the prompt from standard input, `@FILE` from a
    file.
    """
    from corral.interfaces.cli import running

    return running.resume(app, run, prompt, detach=detach, given=given)
