import sys

import click

from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago
from corral.kernel.errors import Invalid

COLUMNS = [
    ("NAME", lambda secret: secret.name),
    ("REFERENCE", lambda secret: secret.reference),
    ("SET", lambda secret: ago(secret.updated_at)),
    ("BY", lambda secret: secret.updated_by),
]


@click.group("secret", cls=Noun, help="Where secrets are to be found.")
def command() -> None:
    pass


@command.command("set")
@click.argument("name")
@click.argument("reference", required=False)
@click.option(
    "--keep",
    type=click.Choice(["file", "keyring"]),
    help="Ask for the value (or read it from standard input) and keep it there.",
)
@pass_app
def set_(app: App, name: str, reference: str | None, keep: str | None) -> None:
    """Say where secret NAME is: env:NAME, file:PATH, cmd:COMMAND or keyring:SERVICE/NAME."""
    if (reference is None) == (keep is None):
        raise Invalid("Give a reference, or --keep file or --keep keyring.")
    if keep is None:
        assert reference is not None
        secret = app.store.secrets.set(name, reference)
    else:
        value = click.prompt("Value", hide_input=True) if sys.stdin.isatty() else _piped()
        secret = app.store.secrets.keep(name, value, where="file" if keep == "file" else "keyring")
    waited = app.store.requests.secrets_given()
    told = f" {len(waited)} who asked for it are told that it is there." if waited else ""
    app.say(f"{secret.name} is at {secret.reference}.{told}", secret)


def _piped() -> str:
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise Invalid("No value came on standard input.")
    return value


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """Names and references; never values."""
    page = app.store.secrets.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No secret is known; `corral secret set` names one.")


@command.command()
@click.argument("name")
@pass_app
def check(app: App, name: str) -> None:
    """Try whether a secret can be read; its value is not shown."""
    app.store.secrets.resolve(name)
    app.say(f"{name} can be read.", app.store.secrets.get(name))


@command.command()
@click.argument("name")
@pass_app
def delete(app: App, name: str) -> None:
    """Forget where a secret is; the secret itself stays where it was."""
    gone = app.store.secrets.delete(name)
    app.say(f"{gone.name} is forgotten.", gone)
