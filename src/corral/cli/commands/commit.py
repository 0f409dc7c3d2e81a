import os

import click

from corral import config
from corral.cli.app import App, Verb, pass_app
from corral.cli.commands.lock import owner_of

SHOWN = 15


@click.command("commit", cls=Verb)
@click.argument("files", nargs=-1)
@click.option("-m", "--message", required=True, help="What the commit says.")
@click.option("--agent", metavar="NAME", help="For whom; as the environment says.")
@click.option("--dry-run", is_flag=True, help="Only say what would be in it.")
@pass_app
def command(
    app: App, files: tuple[str, ...], message: str, agent: str | None, dry_run: bool
) -> None:
    """Commit exactly what you have locked here, and FILES; warn of what else has changed.

    Refused when somebody else holds some of it.
    """
    made = app.store.locks.commit(
        os.getcwd(),
        message,
        agent=owner_of(app, agent),
        files=files,
        run=config.run_id(),
        dry_run=dry_run,
    )
    what = f"{len(made.files)} file{'s' * (len(made.files) != 1)}"
    app.say(f"{made.commit[:12]}: {what}." if made.commit else f"{what} would be in it.", made)
    for names, why in (
        (made.unlocked, "in it, though nobody locked them"),
        (made.left, "changed too, and left out"),
    ):
        if names and not app.json:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            click.echo(f"{why}: {' '.join(map(repr, names[:SHOWN]))}{more}", err=True)
