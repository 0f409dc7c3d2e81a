"""`corral run`: run an agent or any command under supervision."""

from collections.abc import Callable
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


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options shared by `run` and `resume`."""
    for add_option in reversed(OPTIONS):
        function = add_option(function)
    return function


OPTIONS = (
    click.option("-d", "--detach", is_flag=True, help="Run in the background."),
    click.option(
        "--agent",
        metavar="NAME",
        help="Agent to run: a name from `corral agent list`, or a provider.",
    ),
    click.option(
        "--project", metavar="DIR", help="Directory to run in (default: the current directory)."
    ),
    click.option("--name", metavar="NAME", help="Name of the run."),
    click.option("--timeout", type=DURATION, metavar="10m", help="Stop the run after this time."),
    click.option(
        "--idle-exit",
        type=DURATION,
        metavar="60s",
        help="Stop the run when it has been idle for this time.",
    ),
    click.option(
        "--restart",
        metavar="on-failure[:N]",
        help="Restart policy: `no`, `on-failure` (up to 3 restarts) or `on-failure:N`.",
    ),
    click.option(
        "--grace-period",
        type=DURATION,
        metavar="10s",
        help="Time between SIGTERM and SIGKILL (default: 10s).",
    ),
    click.option("--env", "-e", multiple=True, metavar="K=V", help="Set an environment variable."),
    click.option(
        "--secret",
        multiple=True,
        metavar="K=REF",
        help="Set an environment variable to a secret, by name or reference.",
    ),
    click.option(
        "--budget", "budget_micros", type=USD, help="Stop the run when it has spent this amount."
    ),
    click.option(
        "--max-output",
        metavar="100MB",
        help="Maximum output to keep; the middle is dropped (default: 1GB).",
    ),
    click.option(
        "--yes",
        "approvals",
        multiple=True,
        metavar="CLASS",
        help="Approve permission prompts of this class: edit, run, trust or all.",
    ),
    click.option("--acp", is_flag=True, help="Use the Agent Client Protocol."),
    click.option(
        "--pty/--no-pty",
        default=None,
        help="Allocate a pseudo-terminal (default: when stdin is a terminal).",
    ),
    click.option("--host", metavar="NAME", help="Node to run on, or `any` (default: this node)."),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="L",
        help="Only run on nodes with this label.",
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
@run_options
@click.option("--session", metavar="ID", help="Continue this session.")
@click.argument("arguments", nargs=-1, metavar="PROMPT | -- COMMAND…")
@pass_app
def command(app: App, /, arguments: tuple[str, ...], detach: bool, **options: Any) -> int:
    """Run an agent, or any command after `--`, under supervision.

    In the foreground the terminal, input, output, signals and exit code are passed through. The
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
