"""`corral person`: manage people and their roles."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age

COLUMNS = [
    Column("NAME", lambda person: person.name),
    Column("ROLE", lambda person: person.role),
    Column("SINCE", lambda person: format_age(person.created_at)),
]


@click.group("person", cls=CommandGroup, help="Manage people and their roles.")
def command() -> None:
    pass


@command.command("set")
@click.argument("name")
@click.option("--role", default="member", show_default=True, help="Role: owner, admin or member.")
@pass_app
def set_(app: App, name: str, role: str) -> None:
    """Add the person NAME, or change their role."""
    person = app.store.people.set(name, role)
    app.report(f"{person.name} is {person.role}.", person)


@command.command("list")
@paging_options
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """List people."""
    page = app.store.people.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No people. Add one with `corral sender approve`.")
