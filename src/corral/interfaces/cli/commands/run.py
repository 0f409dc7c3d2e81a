"""`corral run`: an agent or any command, tracked."""

from typing import Any

import click

from corral.interfaces.cli.app import DURATION, App, Verb, pass_app

IS_COMMAND = "corral.is_command"


class RunVerb(Verb):
    """Knows whether its words stand behind `--`: a command then, and no prompt."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        context.meta[IS_COMMAND] = "--" in args
        return super().parse_args(context, args)


@click.command("run", cls=RunVerb)
@click.option("-d", "--detach", is_flag=True, help="Come back at once; the run goes on by itself.")
@click.option("--agent", metavar="NAME", help="An agent of `corral agent list`, or a provider.")
@click.option("--project", metavar="DIR", help="Where it works; the current directory otherwise.")
@click.option("--name", metavar="NAME", help="A name for people.")
@click.option("--session", metavar="ID", help="Go on with a conversation.")
@click.option("--timeout", type=DURATION, metavar="10m", help="Stop it after this time.")
@click.option("--idle-exit", type=DURATION, metavar="60s", help="End it when nothing happens.")
@click.option("--restart", metavar="on-failure[:N]", help="Start it again when it fails.")
@click.option("--grace", type=DURATION, metavar="10s", help="Between asking it to end and killing.")
@click.option("--env", "-e", multiple=True, metavar="K=V", help="A variable for it.")
@click.option("--secret", multiple=True, metavar="K=REF", help="A variable whose value is secret.")
@click.option("--budget", metavar="USD", help="Stop it when it has spent so much.")
@click.option("--keep", metavar="100MB", help="Most output to keep: both ends of it (1GB).")
@click.option(
    "--yes", "approvals", multiple=True, metavar="CLASS", help="Answer yes: edit, run, trust, all."
)
@click.option("--acp", is_flag=True, help="Talk with it by the Agent Client Protocol.")
@click.option("--pty/--no-pty", default=None, help="Whether it gets a terminal.")
@click.option("--host", metavar="NAME", help="The machine to run on, or any; this one else.")
@click.option("--label", "labels", multiple=True, metavar="L", help="What it must offer, as gpu.")
@click.argument("words", nargs=-1, metavar="PROMPT | -- COMMAND…")
@pass_app
def command(app: App, /, words: tuple[str, ...], detach: bool, **given: Any) -> int:
    """Run an agent, or any command after `--`, and never lose track of it.

    In the foreground its terminal, input, output, signals and exit code are passed through; closing
    the terminal leaves it running. `-` reads the prompt from standard input, `@FILE` from a file.
    """
    from corral.interfaces.cli import running

    is_command = click.get_current_context().meta[IS_COMMAND]
    return running.run(app, words, is_command=is_command, detach=detach, given=given)
