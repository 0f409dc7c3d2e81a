"""`corral run`: an agent or any command, tracked."""

from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import DURATION, App, Verb, pass_app

IS_COMMAND = "corral.is_command"


class RunVerb(Verb):
    """Knows whether its words stand behind `--`: a command then, and no prompt."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        context.meta[IS_COMMAND] = "--" in args
        return super().parse_args(context, args)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What may be said of any run, a new one or one that goes on."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


OPTIONS = (
    click.option("-d", "--detach", is_flag=True, help="Come back at once; it goes on by itself."),
    click.option("--agent", metavar="NAME", help="An agent of `corral agent list`, or a provider."),
    click.option("--project", metavar="DIR", help="Where it works; otherwise here."),
    click.option("--name", metavar="NAME", help="A name for people."),
    click.option("--timeout", type=DURATION, metavar="10m", help="Stop it after this time."),
    click.option("--idle-exit", type=DURATION, metavar="60s", help="End it when nothing happens."),
    click.option(
        "--restart", metavar="on-failure[:N]", help="Start it anew when it fails; or `no`."
    ),
    click.option("--grace", type=DURATION, metavar="10s", help="From asking it to end to killing."),
    click.option("--env", "-e", multiple=True, metavar="K=V", help="A variable for it."),
    click.option("--secret", multiple=True, metavar="K=REF", help="A variable, by reference."),
    click.option("--budget", metavar="USD", help="Stop it when it has spent so much."),
    click.option("--keep", metavar="100MB", help="Most output to keep: both ends of it (1GB)."),
    click.option(
        "--yes",
        "approvals",
        multiple=True,
        metavar="CLASS",
        help="Answer such questions with yes: edit, run, trust, all.",
    ),
    click.option("--acp", is_flag=True, help="Talk with it by the Agent Client Protocol."),
    click.option("--pty/--no-pty", default=None, help="A terminal for it; else: if you have one."),
    click.option("--host", metavar="NAME", help="The machine to run on, or any; else this one."),
    click.option(
        "--label", "labels", multiple=True, metavar="L", help="What its machine must offer."
    ),
)


@click.command("run", cls=RunVerb)
@run_options
@click.option("--session", metavar="ID", help="Go on with a conversation.")
@click.argument("words", nargs=-1, metavar="PROMPT | -- COMMAND…")
@pass_app
def command(app: App, /, words: tuple[str, ...], detach: bool, **given: Any) -> int:
    """Run an agent, or any command after `--`, and never lose track of it.

    In the foreground its terminal, input, output, signals and exit code are passed through; closing
    the terminal leaves it running. In a terminal an agent is interactive; in a pipe, or with
    --no-pty, it answers the prompt and ends. `-` reads the prompt from standard input, `@FILE` from
    a file. With --json its output goes to standard error, and its record at the end to standard
    output.
    """
    from corral.cli import run_command

    is_command = click.get_current_context().meta[IS_COMMAND]
    return run_command.run(app, words, is_command=is_command, detach=detach, given=given)
