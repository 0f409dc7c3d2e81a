import os
from pathlib import Path
from typing import Any

import click

from corral.cli.app import App, Noun, paging, pass_app, sure
from corral.cli.render import ago, progress_by_part

COLUMNS = [
    ("ID", lambda project: project.id),
    ("NAME", lambda project: project.name),
    ("STATE", lambda project: project.state),
    ("LAST RUN", lambda project: ago(project.last_run_at) if project.last_run_at else "never"),
    ("COMMAND", lambda project: project.command),
    ("DIRECTORY", lambda project: project.dir),
]


def named(app: App, project: str) -> str:
    """PROJECT on the command line is an id, shortened or not, a directory, or a name."""
    id = app.project_id(project)
    assert id is not None
    return id


@click.group("project", cls=Noun, help="Directories that agents work in.")
def command() -> None:
    pass


@command.command()
@click.argument("dir", default=".", type=click.Path())
@click.option("--command", "shell_command", help="What is run here unless said otherwise.")
@click.option("--prompt", help="What it is told unless said otherwise; '' clears it.")
@pass_app
def register(app: App, dir: str, shell_command: str | None, prompt: str | None) -> None:
    """Make DIR a project, or change what is known of it."""
    given: dict[str, Any] = {}
    if shell_command is not None:
        given["command"] = shell_command or None
    if prompt is not None:
        given["prompt"] = prompt or None
    project = app.store.projects.register(os.fspath(dir), **given)
    app.say(f"{project.dir} is project {project.id}.", project)


@command.command("list")
@click.option("--archived", is_flag=True, help="Show archived projects too.")
@paging
@pass_app
def list_(app: App, archived: bool, after: str | None, limit: int) -> None:
    """Projects, last run first."""
    page = app.store.projects.list(archived=archived, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No project yet; `corral project register` makes one here.")


@command.command()
@click.argument("project")
@pass_app
def show(app: App, project: str) -> None:
    """One project, by id, directory or name."""
    app.show(app.store.projects.get(named(app, project)))


@command.command()
@click.argument("project")
@click.argument("name")
@pass_app
def rename(app: App, project: str, name: str) -> None:
    """Give a project another name."""
    renamed = app.store.projects.rename(named(app, project), name)
    app.say(f"{renamed.id} is called {renamed.name} now.", renamed)


@command.command()
@click.argument("project")
@pass_app
def archive(app: App, project: str) -> None:
    """Take a project out of the lists; everything about it is kept."""
    archived = app.store.projects.archive(named(app, project))
    app.say(f"{archived.name} is archived; registering its directory brings it back.", archived)


@command.command()
@click.argument("project")
@click.argument("file", type=click.Path(path_type=Path))
@pass_app
def export(app: App, project: str, file: Path) -> None:
    """Write all that belongs to PROJECT into FILE, while others go on working.

    FILE is a store of its own: `corral --store sqlite:///FILE ps -a` and every other command look
    into it. Runs with their sealed output, sessions, tasks, races, groups, notes, mail, costs and
    the record of the project are in it, and the agents that worked there; other projects, secrets,
    tokens, alerts, and chats of channels are not.
    """
    store = app.store_here
    with progress_by_part("Exporting", quiet=app.json) as told:
        made = store.projects.export(named(app, project), file, told=told)
    rows = sum(made.rows.values())
    missing = (
        f" Output of {made.outputs_missing} runs is not in it: it is on another machine, or gone."
        if made.outputs_missing
        else ""
    )
    app.say(
        f"{made.file} holds {rows:,} rows of {len(made.rows)} tables and the output of "
        f"{made.outputs:,} runs ({made.bytes:,} bytes).{missing} Look into it with `corral --store "
        f"sqlite:///{made.file} ps -a`.",
        made,
    )


@command.command()
@click.argument("project")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def delete(app: App, project: str, yes: bool) -> None:
    """Forget a project, its settings, schedules and sessions; its directory is not touched."""
    found = app.store.projects.get(named(app, project))
    if not yes:
        sure(f"Forget {found.name} ({found.dir}), its settings, schedules and sessions?")
    gone = app.store.projects.delete(found.id)
    app.say(f"{gone.name} is forgotten.", gone)
