from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import DURATION, App, Noun, paging, pass_app, read_body
from corral.cli.render import ago

COLUMNS = [
    ("ID", lambda note: note.id),
    ("FOR", lambda note: note.scope),
    ("CATEGORY", lambda note: note.category),
    ("KEY", lambda note: note.key),
    ("SURE", lambda note: f"{note.confidence} %"),
    ("NOTED", lambda note: ago(note.created_at)),
    ("CONTENT", lambda note: note.text),
]
FOUND = [
    ("SCORE", lambda found: f"{found.score:.2f}"),
    ("ID", lambda found: found.note.id),
    ("FOR", lambda found: found.note.scope),
    ("CATEGORY", lambda found: found.note.category),
    ("CONTENT", lambda found: found.note.text),
]


def whose(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say for whom."""
    agent = click.option("--agent", metavar="NAME", help="For this agent.")
    project = click.option("--project", metavar="ID|DIR", help="For this project.")
    return agent(project(function))


@click.group("note", cls=Noun, help="What is remembered: for an agent, a project, everyone.")
def command() -> None:
    pass


@command.command()
@click.argument("text")
@whose
@click.option("--category", default="general", show_default=True, help="core is always given.")
@click.option("--key", help="It comes in the place of the note with this key.")
@click.option("--confidence", type=int, default=100, show_default=True, help="In percent.")
@click.option("--for", "ttl_ms", type=DURATION, metavar="TIME", help="How long it counts.")
@pass_app
def add(
    app: App,
    text: str,
    agent: str | None,
    project: str | None,
    category: str,
    key: str | None,
    confidence: int,
    ttl_ms: int | None,
) -> None:
    """Remember TEXT (or @FILE); for everyone, if nobody is named."""
    made = app.store.notes.add(
        read_body(text, False),
        agent=agent,
        project=app.project_id(project),
        category=category,
        key=key,
        confidence=confidence,
        ttl_ms=ttl_ms,
    )
    app.say(f"{made.id} is remembered for {made.scope}.", made)


@command.command("list")
@whose
@click.option("--everyone", is_flag=True, help="Only what is for everyone.")
@click.option("--category", help="Only of this category.")
@click.option("--all", "all_", is_flag=True, help="Also superseded and expired ones.")
@paging
@pass_app
def list_(
    app: App,
    agent: str | None,
    project: str | None,
    everyone: bool,
    category: str | None,
    all_: bool,
    after: str | None,
    limit: int,
) -> None:
    """Notes, newest first."""
    page = app.store.notes.list(
        agent=agent,
        project=app.project_id(project),
        everyone=everyone,
        category=category,
        all=all_,
        after=after,
        limit=limit,
    )
    app.show_page(page, COLUMNS, empty="Nothing is remembered; `corral note add` does it.")


@command.command()
@click.argument("text", nargs=-1, required=True)
@whose
@click.option("--limit", type=int, default=10, show_default=True)
@pass_app
def search(
    app: App, text: tuple[str, ...], agent: str | None, project: str | None, limit: int
) -> None:
    """Notes that fit TEXT best: those for everyone, the agent, and the project (that of this
    directory by default)."""
    where = app.project_id(project) if project else app.project_here()
    found = app.store.notes.search(" ".join(text), agent=agent, project=where, limit=limit)
    empty = "No note for everyone, or for those you name, has any of these words."
    app.show_all(found, FOUND, empty=empty)


@command.command()
@click.argument("text", required=False)
@whose
@click.option("--tokens", type=int, default=1_200, show_default=True, help="At most so many.")
@pass_app
def section(
    app: App, text: str | None, agent: str | None, project: str | None, tokens: int
) -> None:
    """What an agent that works on TEXT should know, as a part of its prompt."""
    part = app.store.notes.section(
        about=read_body(text, False) if text else None,
        agent=agent,
        project=app.project_id(project),
        tokens=tokens,
    )
    app.show_body(part.text) if not app.json else app.show(part)
    app.store.try_upkeep("note.use", lambda: app.store.notes.use(part.notes))


@command.command()
@click.argument("note")
@pass_app
def show(app: App, note: str) -> None:
    """One note, whole."""
    app.show(app.store.notes.get(note))


@command.command()
@click.argument("note")
@click.argument("text")
@click.option("--confidence", type=int, help="In percent.")
@pass_app
def supersede(app: App, note: str, text: str, confidence: int | None) -> None:
    """Put TEXT (or @FILE) in the place of NOTE."""
    made = app.store.notes.supersede(note, read_body(text, False), confidence=confidence)
    app.say(f"{made.id} is in the place of {made.supersedes}.", made)


@command.command()
@click.argument("note")
@pass_app
def forget(app: App, note: str) -> None:
    """Remember NOTE no more; its words are gone from the store."""
    gone = app.store.notes.forget(note)
    app.say(f"{gone.id} is forgotten.", gone)
