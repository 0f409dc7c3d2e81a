from typing import Any

import click

from corral.cli.app import App, Verb, pass_app
from corral.cli.commands.run import run_options


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
    from corral.cli import run_command

    return run_command.resume(app, run, prompt, detach=detach, given=given)
