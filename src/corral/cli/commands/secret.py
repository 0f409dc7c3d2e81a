"""`corral secret`: manage references to secrets."""

import sys

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age, format_count
from corral.kernel.errors import Invalid

COLUMNS = [
    Column("NAME", lambda secret: secret.name),
    Column("REFERENCE", lambda secret: secret.reference, shrink="truncate"),
    Column("SET", lambda secret: format_age(secret.updated_at)),
    Column("BY", lambda secret: secret.updated_by),
]


@click.group("secret", cls=CommandGroup, help="Manage references to secrets.")
def command() -> None:
    pass


@command.command(
    "set",
    examples=[
        "corral secret set openai env:OPENAI_API_KEY",
        "corral secret set telegram-token --keep keyring",
    ],
)
@click.argument("name")
@click.argument("reference", required=False)
@click.option(
    "--keep",
    type=click.Choice(["file", "keyring"]),
    help="Prompt for the value (or read standard input) and save it in a private file or the "
    "keyring.",
)
@pass_app
def set_(app: App, name: str, reference: str | None, keep: str | None) -> None:
    """Set the REFERENCE of secret NAME.

    REFERENCE is env:NAME, file:PATH, cmd:COMMAND or keyring:SERVICE/NAME. The store contains only
    the reference, never the value.
    """
    if (reference is None) == (keep is None):
        raise Invalid("Give a reference, or --keep file or --keep keyring.")
    if keep is None:
        assert reference is not None
        secret = app.store.secrets.set(name, reference)
    else:
        value = click.prompt("Value", hide_input=True) if sys.stdin.isatty() else _read_stdin()
        secret = app.store.secrets.save_value(
            name, value, where="file" if keep == "file" else "keyring"
        )
    requests = app.store.host_requests.complete_secret_requests()
    agents = format_count(len(requests), "agents")
    notified = f" Notified {agents} that requested it." if requests else ""
    app.report(f"Secret {secret.name} refers to {secret.reference}.{notified}", secret)


def _read_stdin() -> str:
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise Invalid("Standard input is empty. Pipe the value of the secret into the command.")
    return value


@command.command("list")
@paging_options
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """List secrets and their references, never their values."""
    page = app.store.secrets.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No secrets. Add one with `corral secret set`.")


@command.command()
@click.argument("name")
@pass_app
def check(app: App, name: str) -> None:
    """Check whether a secret can be read, without showing its value."""
    app.store.secrets.resolve(name)
    app.report(f"Secret {name} can be read.", app.store.secrets.get(name))


@command.command()
@click.argument("name")
@pass_app
def delete(app: App, name: str) -> None:
    """Delete the reference to a secret; the secret itself is kept."""
    deleted = app.store.secrets.delete(name)
    app.report(f"Deleted the reference to {deleted.name}.", deleted)
