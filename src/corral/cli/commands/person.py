import click

from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago

COLUMNS = [
    ("NAME", lambda person: person.name),
    ("ROLE", lambda person: person.role),
    ("SINCE", lambda person: ago(person.created_at)),
]


@click.group("person", cls=Noun, help="People on channels, and what they may do.")
def command() -> None:
    pass


@command.command("set")
@click.argument("name")
@click.option("--role", default="member", show_default=True, help="owner, admin or member.")
@pass_app
def set_(app: App, name: str, role: str) -> None:
    """Know NAME, and what they may do."""
    known = app.store.people.set(name, role)
    app.say(f"{known.name} is {known.role}.", known)


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """The people we know."""
    page = app.store.people.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="Nobody is known yet; `corral sender approve` lets one in.")
