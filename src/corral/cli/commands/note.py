"""`corral note`: manage notes for an agent, a project or everyone."""

from collections.abc import Callable
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body
from corral.cli.render import format_age

COLUMNS = [
    Column("ID", lambda note: note.id),
    Column("FOR", lambda note: note.scope, drop=4),
    Column("CATEGORY", lambda note: note.category, drop=1),
    Column("KEY", lambda note: note.key, drop=2),
    Column("CONFIDENCE", lambda note: f"{note.confidence} %", drop=5),
    Column("ADDED", lambda note: format_age(note.created_at), drop=3),
    Column("CONTENT", lambda note: note.text, shrink="truncate"),
]
HITS = [
    Column("SCORE", lambda hit: f"{hit.score:.2f}"),
    Column("ID", lambda hit: hit.note.id, drop=1),
    Column("FOR", lambda hit: hit.note.scope, drop=3),
    Column("CATEGORY", lambda hit: hit.note.category, drop=2),
    Column("CONTENT", lambda hit: hit.note.text, shrink="truncate"),
]


def scope_options(*, agent: str, project: str) -> Callable[..., Any]:
    """Add `--agent` and `--project`, the scope of a note, with these help texts."""
    add_agent = click.option("--agent", metavar="NAME", help=agent)
    add_project = click.option("--project", metavar="ID|DIR", help=project)
    return lambda function: add_agent(add_project(function))


@click.group("note", cls=CommandGroup, help="Manage notes for an agent, a project or everyone.")
def command() -> None:
    pass


@command.command(
    examples=[
        'corral note add "The tests need Redis" --project .',
        'corral note add "Prefers short answers" --agent ada --category core',
    ]
)
@click.argument("text")
@scope_options(agent="Agent that the note is for.", project="Project that the note is for.")
@click.option(
    "--category",
    default="general",
    show_default=True,
    help="Category; notes of category core are in every prompt.",
)
@click.option("--key", help="Key of the note; replaces the note with the same key.")
@click.option(
    "--confidence", type=int, default=100, show_default=True, help="Confidence in percent."
)
@click.option(
    "--expires-in",
    "ttl_ms",
    type=DURATION,
    help="Time until the note expires (default: never).",
)
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
    """Add a note with TEXT (or @FILE); without --agent or --project, for everyone."""
    note = app.store.notes.add(
        read_body(text, False),
        agent=agent,
        project=app.project_id(project),
        category=category,
        key=key,
        confidence=confidence,
        ttl_ms=ttl_ms,
    )
    app.report(f"Added {note.id} for {note.scope}.", note)


@command.command("list")
@scope_options(agent="Only list notes for this agent.", project="Only list notes for this project.")
@click.option("--everyone", is_flag=True, help="Only list notes for everyone.")
@click.option("--category", help="Only list notes of this category.")
@click.option("--all", "all_", is_flag=True, help="Include superseded and expired notes.")
@paging_options
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
    """List notes, newest first."""
    page = app.store.notes.list(
        agent=agent,
        project=app.project_id(project),
        everyone=everyone,
        category=category,
        all=all_,
        after=after,
        limit=limit,
    )
    app.show_page(page, COLUMNS, empty="No notes. Add one with `corral note add`.")


@command.command()
@click.argument("text", nargs=-1, required=True)
@scope_options(
    agent="Also search notes for this agent.",
    project="Also search notes for this project (default: that of the current directory).",
)
@click.option("--limit", type=int, default=10, show_default=True, help="Maximum number of notes.")
@pass_app
def search(
    app: App, text: tuple[str, ...], agent: str | None, project: str | None, limit: int
) -> None:
    """Search notes for TEXT, best match first.

    Searches the notes for everyone, for the agent, and for the project (default: that of the
    current directory).
    """
    project_id = app.project_id(project) if project else app.current_project_id()
    hits = app.store.notes.search(" ".join(text), agent=agent, project=project_id, limit=limit)
    app.show_list(hits, HITS, empty="No matching notes for everyone or in the given scope.")


@command.command()
@click.argument("text", required=False)
@scope_options(
    agent="Also use notes for this agent.",
    project="Also use notes for this project (default: none).",
)
@click.option(
    "--tokens", type=int, default=1_200, show_default=True, help="Maximum number of tokens."
)
@pass_app
def section(
    app: App, text: str | None, agent: str | None, project: str | None, tokens: int
) -> None:
    """Print the notes relevant to TEXT as a section of a prompt."""
    section = app.store.notes.prompt_section(
        about=read_body(text, False) if text else None,
        agent=agent,
        project=app.project_id(project),
        tokens=tokens,
    )
    app.show_body(section.text) if not app.json else app.show(section)
    app.store.try_write_before_read("note.use", lambda: app.store.notes.record_use(section.notes))


@command.command()
@click.argument("note")
@pass_app
def show(app: App, note: str) -> None:
    """Show a note."""
    app.show(app.store.notes.get(note))


@command.command()
@click.argument("note")
@click.argument("text")
@click.option(
    "--confidence", type=int, help="Confidence in percent (default: that of the replaced note)."
)
@pass_app
def supersede(app: App, note: str, text: str, confidence: int | None) -> None:
    """Replace NOTE by a new note with TEXT (or @FILE)."""
    new = app.store.notes.supersede(note, read_body(text, False), confidence=confidence)
    app.report(f"Replaced {new.supersedes} by {new.id}.", new)


@command.command()
@click.argument("note")
@pass_app
def forget(app: App, note: str) -> None:
    """Delete the text of NOTE from the store."""
    forgotten = app.store.notes.forget(note)
    app.report(f"Deleted the text of {forgotten.id}.", forgotten)
