"""`corral resume`: continue a run or a session."""

from typing import Any

import click

from corral.cli.click_classes import Command
from corral.cli.commands.run import run_options
from corral.cli.context import App, pass_app


@click.command(
    "resume",
    cls=Command,
    examples=[
        "corral resume run_01abc",
        'corral resume -d login "now add the tests"',
    ],
)
@click.argument("run", metavar="RUN | SESSION")
@click.argument("prompt", required=False)
@run_options(default="that of the previous run")
@pass_app
def command(app: App, /, run: str, prompt: str | None, detach: bool, **options: Any) -> int:
    """Resume a run or a session, optionally with a new PROMPT.

    Options that are not given keep the values of the previous run. PROMPT `-` reads the prompt
    from standard input, `@FILE` from a file.
    """
    from corral.cli import run_command

    return run_command.resume_run(app, run, prompt, detach=detach, options=options)
