"""`corral run`: run an agent or any command under supervision."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, USD

IS_COMMAND = "corral.is_command"


class RunCommand(Command):
    """Records whether the arguments follow `--`: they are a command then, not a prompt."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[IS_COMMAND] = "--" in args
        return super().parse_args(ctx, args)


def run_options(default: str | None = None) -> Callable[..., Any]:
    """Add the options shared by `run` and `resume`.

    `default` replaces the defaults that the help of `run` shows.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for add_option in reversed(_create_options(lambda text: default or text)):
            function = add_option(function)
        return function

    return decorate


def _create_options(default: Callable[[str], str]) -> Sequence[Callable[..., Any]]:
    """Return the options; `default` maps the default of `run` to that of the command."""
    of_agent = default("the limit of the agent, else no limit")
    agent = default("the command of the project, else the first agent CLI on the PATH")
    folder = default("that of the agent or session, else the current directory")
    kept = "Maximum output to keep; the middle is dropped"
    return (
        click.option("-d", "--detach", is_flag=True, help="Run in the background."),
        click.option(
            "--agent",
            metavar="NAME",
            help="Agent to run: a name from `corral agent list`, or a provider "
            f"(default: {agent}).",
        ),
        click.option("--project", metavar="DIR", help=f"Directory to run in (default: {folder})."),
        click.option(
            "--name", metavar="NAME", help=f"Name of the run (default: {default('none')})."
        ),
        click.option(
            "--timeout",
            type=DURATION,
            help=f"Stop the run after this time (default: {of_agent}).",
        ),
        click.option(
            "--idle-exit",
            type=DURATION,
            help="End the run when it has been idle for this time "
            f"(default: {default('the limit of the agent, else never')}).",
        ),
        click.option(
            "--restart",
            metavar="on-failure[:N]",
            help="Restart policy: `no`, `on-failure` (up to 3 restarts) or `on-failure:N` "
            f"(default: {default('no')}).",
        ),
        click.option(
            "--grace-period",
            type=DURATION,
            help=f"Time between SIGTERM and SIGKILL (default: {default('10s')}).",
        ),
        click.option(
            "--env",
            "-e",
            multiple=True,
            metavar="K=V",
            help="Set an environment variable. Repeatable.",
        ),
        click.option(
            "--secret",
            multiple=True,
            metavar="K=REF",
            help="Set an environment variable to a secret, by name or reference. Repeatable.",
        ),
        click.option(
            "--budget",
            "budget_micros",
            type=USD,
            help=f"Stop the run when it has spent this amount (default: {of_agent}).",
        ),
        click.option(
            "--max-output",
            metavar="SIZE",
            help=f"{kept} (default: {default('1GB')}).",
        ),
        click.option(
            "--yes",
            "approvals",
            multiple=True,
            metavar="CLASS",
            help="Approve permission prompts of this class: edit, run, trust or all. Repeatable "
            f"(default: {default('none')}).",
        ),
        click.option("--acp", is_flag=True, help="Use the Agent Client Protocol."),
        click.option(
            "--pty/--no-pty",
            default=None,
            help="Allocate a pseudo-terminal (default: if standard input is a terminal and the "
            "run is in the foreground).",
        ),
        click.option(
            "--host",
            metavar="NAME",
            help=f"Node to run on, or `any` (default: {default('this node')}).",
        ),
        click.option(
            "--label",
            "labels",
            multiple=True,
            metavar="L",
            help="Only run on nodes with this label. Repeatable.",
        ),
    )


@click.command(
    "run",
    cls=RunCommand,
    examples=[
        "corral run -- make test",
        'corral run --agent claude "fix the failing test"',
        "corral run -d --agent codex --yes edit --timeout 30m @prompt.md",
        "corral run -d --name server --restart on-failure -- npm start",
    ],
)
@run_options()
@click.option("--session", metavar="ID", help="Continue this session.")
@click.argument("arguments", nargs=-1, metavar="PROMPT | -- COMMAND…")
@pass_app
def command(app: App, /, arguments: tuple[str, ...], detach: bool, **options: Any) -> int:
    """Run an agent, or any command after `--`, under supervision.

    In the foreground the terminal, input, output, signals and exit status are passed through. The
    run continues when the terminal is closed. In a terminal an agent is interactive; in a pipe, or
    with --no-pty, it answers the prompt and exits.

    PROMPT `-` reads the prompt from standard input, `@FILE` from a file. With --json the output
    goes to standard error, and the record of the run to standard output when it ends.
    """
    from corral.cli import run_command

    is_command = click.get_current_context().meta[IS_COMMAND]
    return run_command.start_run(
        app, arguments, is_command=is_command, detach=detach, options=options
    )
