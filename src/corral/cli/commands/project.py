"""`corral project`: manage projects, the directories that agents work in."""

import os
from pathlib import Path
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age, progress_by_part
from corral.cli.tty import confirm

COLUMNS = [
    Column("ID", lambda project: project.id),
    Column("NAME", lambda project: project.name),
    Column("STATE", lambda project: project.state, is_state=True),
    Column(
        "LAST RUN",
        lambda project: format_age(project.last_run_at) if project.last_run_at else "never",
    ),
    Column("COMMAND", lambda project: project.command, shrink="truncate"),
    Column("DIRECTORY", lambda project: project.dir, shrink="truncate"),
]


def resolve_project(app: App, project: str) -> str:
    """Return the id of a project given by id, id prefix, directory or name."""
    id = app.project_id(project)
    assert id is not None
    return id


@click.group("project", cls=CommandGroup, help="Manage projects: directories that agents work in.")
def command() -> None:
    pass


@command.command()
@click.argument("dir", default=".", type=click.Path())
@click.option("--command", "shell_command", help="Default command; an empty text removes it.")
@click.option("--prompt", help="Default prompt; an empty text removes it.")
@pass_app
def register(app: App, dir: str, shell_command: str | None, prompt: str | None) -> None:
    """Register DIR as a project, or change its default command and prompt."""
    changes: dict[str, Any] = {}
    if shell_command is not None:
        changes["command"] = shell_command or None
    if prompt is not None:
        changes["prompt"] = prompt or None
    project = app.store.projects.register(os.fspath(dir), **changes)
    app.report(f"Registered {project.dir} as project {project.id}.", project)


@command.command("list")
@click.option("--archived", is_flag=True, help="Include archived projects.")
@paging_options
@pass_app
def list_(app: App, archived: bool, after: str | None, limit: int) -> None:
    """List projects, most recent run first."""
    page = app.store.projects.list(archived=archived, after=after, limit=limit)
    app.show_page(
        page, COLUMNS, empty="No projects. Register this directory with `corral project register`."
    )


@command.command()
@click.argument("project")
@pass_app
def show(app: App, project: str) -> None:
    """Show a project, by id, directory or name."""
    app.show(app.store.projects.get(resolve_project(app, project)))


@command.command()
@click.argument("project")
@click.argument("name")
@pass_app
def rename(app: App, project: str, name: str) -> None:
    """Rename a project."""
    renamed = app.store.projects.rename(resolve_project(app, project), name)
    app.report(f"Renamed {renamed.id} to {renamed.name}.", renamed)


@command.command()
@click.argument("project")
@pass_app
def archive(app: App, project: str) -> None:
    """Archive a project: it leaves the lists, and its data is kept."""
    archived = app.store.projects.archive(resolve_project(app, project))
    app.report(
        f"Archived {archived.name}. Restore it with `corral project register {archived.dir}`.",
        archived,
    )


@command.command()
@click.argument("project")
@click.argument("file", type=click.Path(path_type=Path))
@pass_app
def export(app: App, project: str, file: Path) -> None:
    """Export everything that belongs to PROJECT to FILE, a store of its own.

    Inspect it with any command, such as `corral --store sqlite:///FILE ps -a`. The export contains
    the runs with their sealed output, sessions, tasks, races, groups, notes, mail, cost and events
    of the project, and the agents that worked in it. It does not contain other projects, secrets,
    tokens, alerts, or chats of channels. Other processes can work during the export.
    """
    store = app.local_store
    with progress_by_part("Exporting", quiet=app.json) as update:
        result = store.projects.export(resolve_project(app, project), file, on_progress=update)
    rows = sum(result.rows.values())
    missing = (
        f" The output of {result.outputs_missing} runs is missing: it is on another machine or was "
        "deleted."
        if result.outputs_missing
        else ""
    )
    app.report(
        f"Exported {rows:,} rows of {len(result.rows)} tables and the output of "
        f"{result.outputs:,} runs to {result.file} ({result.bytes:,} bytes).{missing} Inspect it "
        f"with `corral --store sqlite:///{result.file} ps -a`.",
        result,
    )


@command.command()
@click.argument("project")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_app
def delete(app: App, project: str, yes: bool) -> None:
    """Delete a project with its settings, schedules and sessions; its directory is not changed."""
    record = app.store.projects.get(resolve_project(app, project))
    if not yes:
        confirm(f"Delete {record.name} ({record.dir}) with its settings, schedules and sessions?")
    deleted = app.store.projects.delete(record.id)
    app.report(f"Deleted {deleted.name}.", deleted)
