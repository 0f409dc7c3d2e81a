"""`corral commit`: commit only the files that the caller has locked."""

import os

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app

MAX_SHOWN = 15
"""Maximum number of files that are named in a warning."""


@click.command(
    "commit",
    cls=Command,
    examples=[
        'corral commit -m "Add the login form"',
        'corral commit -m "Fix the parser" src/parser.py',
    ],
)
@click.argument("files", nargs=-1)
@click.option("-m", "--message", required=True, help="Commit message.")
@click.option("--agent", metavar="NAME", help="Owner of the locks (default: the caller).")
@click.option("--dry-run", is_flag=True, help="Show what would be committed.")
@pass_app
def command(
    app: App, files: tuple[str, ...], message: str, agent: str | None, dry_run: bool
) -> None:
    """Commit the files that you have locked in this directory, and FILES.

    Prints a warning about other changed files. Fails if another owner holds a lock on any of the
    files.
    """
    result = app.store.locks.commit(
        os.getcwd(),
        message,
        agent=app.acting_owner(agent),
        files=files,
        run=app.caller.run,
        dry_run=dry_run,
    )
    count = f"{len(result.files)} file{'s' * (len(result.files) != 1)}"
    app.report(
        f"Committed {count} ({result.commit[:12]})." if result.commit else f"Would commit {count}.",
        result,
    )
    for names, title in (
        (result.unlocked, "Committed without a lock"),
        (result.left, "Changed but not committed"),
    ):
        if names and not app.json:
            more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
            click.echo(f"{title}: {' '.join(map(repr, names[:MAX_SHOWN]))}{more}", err=True)
