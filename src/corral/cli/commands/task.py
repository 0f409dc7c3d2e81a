from typing import Any

import click

from corral.cli import identity
from corral.cli.app import DURATION, MOMENT, App, Columns, Noun, paging, pass_app, read_body
from corral.cli.commands.task_management import LEADING
from corral.cli.render import ago, write_line, write_table
from corral.cli.task_view import (
    as_agent,
    id_of,
    in_project,
    on_task,
    project_of,
    read_list,
    task_fields,
    with_fence,
    with_reason,
)
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page


def _columns(app: App) -> Columns:
    return [
        ("KEY", lambda task: task.key),
        ("STATE", lambda task: task.state),
        ("ROLE", lambda task: task.role),
        ("PRIORITY", lambda task: task.priority or None),
        ("NEEDS", _needs),
        ("DOER", lambda task: app.agent_name(task.agent_id or task.assignee_id)),
        ("TITLE", lambda task: task.title),
        ("REASON", lambda task: task.reason or _held(app, task)),
        ("TASK ID", lambda task: task.id),
    ]


def _needs(task: Any) -> str | None:
    return ", ".join(task.depends_on[:5]) + (" …" * (len(task.depends_on) > 5)) or None


def _held(app: App, task: Any) -> str | None:
    return f"shares files with {app.task_key(task.held_by)}" if task.held_by else None


THEN = [
    ("KEY", lambda task: task.key),
    ("STATE", lambda task: task.state or "unknown"),
    ("AGENT", lambda task: task.agent),
    ("LAST", lambda task: task.verb),
    ("BY", lambda task: task.actor),
    ("SINCE", lambda task: ago(task.since) if task.since else None),
    ("ID", lambda task: task.id),
    ("TITLE", lambda task: task.title),
]
HELD = [
    ("LOCKED", lambda lock: lock.path),
    ("MODE", lambda lock: lock.mode),
    ("OWNER", lambda lock: lock.owner),
    ("SINCE", lambda lock: ago(lock.held_at)),
    ("ID", lambda lock: lock.id),
]

TEMPLATES = [
    ("NAME", lambda template: template.name),
    ("TASKS", lambda template: ", ".join(part.key for part in template.parts)),
    ("MEANING", lambda template: template.help),
]


@click.group("task", cls=Noun, help="A project's graph of work: who does what, and what waits.")
def command() -> None:
    pass


for _leading in LEADING:
    command.add_command(_leading)


@command.command()
@click.argument("file")
@in_project
@click.option("--lead", metavar="MAILBOX", help="Who is told how they go; you by default.")
@as_agent
@pass_app
def declare(app: App, file: str, project: str | None, lead: str | None, agent: str | None) -> None:
    """Add the tasks in FILE (JSON or YAML; - reads standard input), all or none."""
    made = app.store.tasks.declare(
        project_of(app, project), read_list(file), lead=lead, agent=identity.agent(agent)
    )
    ready = sum(task.state == "ready" for task in made)
    app.say(f"{len(made)} tasks are declared, {ready} of them ready.", made)


@command.command()
@click.argument("key")
@click.argument("title", required=False)
@click.option("--role", help="The role of the agents that may take it.")
@click.option("--description", metavar="TEXT|@FILE", help="What is to be done.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A path that it changes.")
@click.option("--needs", "depends_on", multiple=True, metavar="KEY", help="A task before it.")
@click.option("--priority", type=int, default=0, help="Higher is taken first.")
@click.option("--check", metavar="CMD", help="What Corral runs to accept it.")
@click.option("--assignee", metavar="AGENT", help="The only agent that may take it.")
@click.option("--lead", metavar="MAILBOX", help="Who is told how it goes; you by default.")
@in_project
@as_agent
@pass_app
def add(
    app: App,
    /,
    project: str | None,
    agent: str | None,
    key: str,
    title: str | None,
    description: str | None,
    **options: Any,
) -> None:
    """Add one task."""
    task = app.store.tasks.add(
        project_of(app, project),
        key,
        title,
        description=read_body(description, False) if description else None,
        agent=identity.agent(agent),
        **options,
    )
    app.say(f"{task.key} is {task.state} ({task.id}).", task)


@command.command()
@pass_app
def templates(app: App) -> None:
    """The templates that come with Corral."""
    app.show_all(app.store.tasks.templates(), TEMPLATES, empty="There is none.")


@command.command()
@click.argument("template")
@click.argument("title")
@click.option("--key", required=True, help="Its tasks are KEY/build, KEY/review and so on.")
@click.option("--needs", "depends_on", multiple=True, metavar="KEY", help="A task before them.")
@click.option("--check", metavar="CMD", help="What Corral runs to accept what is built.")
@in_project
@as_agent
@pass_app
def apply(
    app: App, /, template: str, title: str, project: str | None, agent: str | None, **options: Any
) -> None:
    """Declare the tasks of TEMPLATE for one piece of work."""
    made = app.store.tasks.apply(
        project_of(app, project), template, title, agent=identity.agent(agent), **options
    )
    app.show_all(made, _columns(app), empty="It has no tasks.")


@command.command("list")
@in_project
@click.option("--state", help="Only those in a state.")
@click.option("--by", metavar="AGENT", help="Those that an agent has or had, of all projects.")
@click.option("--archived", is_flag=True, help="Those that are archived instead.")
@click.option("--at", type=MOMENT, metavar="TIME", help="The whole board as it was at a moment.")
@paging
@pass_app
def list_(app: App, /, project: str | None, by: str | None, at: int | None, **options: Any) -> None:
    """Tasks, in the order in which they were declared."""
    if at is not None:
        _list_then(app, project_of(app, project), at, by, **options)
        return
    app.store.try_upkeep("task.release_due", app.store.tasks.release_due)
    of = project_of(app, project) if by is None or project is not None else None
    page = app.store.tasks.list(project=of, agent=by, **options)
    app.show_page(
        page, _columns(app), empty="No task yet; `corral task add` or `declare` makes some."
    )


def _list_then(
    app: App,
    project: str,
    at: int,
    by: str | None,
    state: str | None,
    archived: bool,
    **paging: Any,
) -> None:
    if by or state or archived:
        raise Invalid("The board of a moment is shown whole; leave --by, --state and --archived.")
    found = app.store.insights.moment(project, at, **paging)
    page = Page(found.tasks, found.next)
    app.show_page(page, THEN, empty="No task was on the board then.")
    if found.locks and not app.json:
        write_line("")
        write_table(found.locks, HELD)


@command.command()
@on_task
@pass_app
def show(app: App, task: str, project: str | None, agent: str | None) -> None:
    """One task; --json has all that is kept of it."""
    app.show(app.store.tasks.get(id_of(app, task, project)), task_fields(app))


@command.command()
@in_project
@pass_app
def graph(app: App, project: str | None) -> None:
    """The whole graph: what waits for what, and the critical path."""
    found = app.store.tasks.graph(project_of(app, project))
    if app.json:
        app.show(found)
        return
    critical = {*found.critical_path}
    for task in found.tasks:
        mark = "*" if task.id in critical else " "
        needs = f" ← {', '.join(task.depends_on)}" if task.depends_on else ""
        write_line(f"{mark} {task.state:<9} {task.key}{needs}")
    counted = ", ".join(f"{count} {state}" for state, count in sorted(found.counts.items()))
    write_line(f"{counted or 'No task yet.'}  (* critical path)" if counted else "No task yet.")


@command.command()
@in_project
@pass_app
def counts(app: App, project: str | None) -> None:
    """How many tasks are in which state."""
    found = app.store.tasks.counts(project_of(app, project))
    app.show_pairs(dict(sorted(found.items())), "STATE", "TASKS", empty="No task yet.")


# -- doing -------------------------------------------------------------------------------------


@command.command()
@in_project
@click.option("--key", help="This one, and no other.")
@click.option("--role", help="Only of this role; that of the agent by default.")
@click.option("--run", metavar="ID", help="The run that does it; $CORRAL_RUN by default.")
@click.option("--lease", "lease_ms", type=DURATION, help="How long you may be silent.")
@as_agent
@pass_app
def claim(
    app: App, /, project: str | None, agent: str | None, run: str | None, **options: Any
) -> None:
    """Take the next task that is ready; exit code 3 when there is none."""
    from corral.kernel.errors import NotFound

    who = identity.required_agent(agent)
    of = project_of(app, project)
    task = app.store.tasks.claim(of, who, run=identity.run(run), **options)
    if task is None:
        raise NotFound("No task is ready for you; wait, or look at `corral task list`.")
    app.say(f"{task.key} is yours ({task.id}, fence {task.fence}): {task.title}", task)


@command.command()
@on_task
@with_fence
@click.option("--lease", "lease_ms", type=DURATION, help="How long you may be silent.")
@pass_app
def renew(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
    """Keep a task for another term."""
    id = id_of(app, task, project)
    kept = app.store.tasks.renew(id, agent=identity.agent(agent), **options)
    app.say(f"{kept.key} stays yours.", kept)


@command.command()
@on_task
@with_fence
@click.option("--text", metavar="TEXT|@FILE", help="What was done, in words.")
@click.option("--commit", "commits", multiple=True, help="A commit that it is in.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A file that shows it.")
@click.option(
    "--ran",
    "commands",
    multiple=True,
    nargs=2,
    metavar="CMD CODE",
    help="A command that was run, and its exit code.",
)
@click.option("--evidence", metavar="JSON|@FILE", help="All of it as one JSON object.")
@pass_app
def submit(
    app: App,
    /,
    task: str,
    project: str | None,
    agent: str | None,
    fence: int | None,
    text: str | None,
    evidence: str | None,
    commits: tuple[str, ...],
    files: tuple[str, ...],
    commands: tuple[tuple[str, str], ...],
) -> None:
    """Say that a task is done, with what shows it."""
    shown: dict[str, Any] = read_body(evidence, True) if evidence else {}
    if text:
        shown["text"] = read_body(text, False)
    for name, given in (("commits", commits), ("files", files)):
        if given:
            shown[name] = list(given)
    if commands:
        shown["commands"] = [
            {"command": ran, "exit_code": int(code) if code.removeprefix("-").isdecimal() else code}
            for ran, code in commands
        ]
    id = id_of(app, task, project)
    before = app.store.tasks.get(id).submitted_at
    submitted = app.store.tasks.submit(id, shown, agent=identity.agent(agent), fence=fence)
    again = " already; what it was submitted with first counts" * (before == submitted.submitted_at)
    app.say(f"{submitted.key} is {submitted.state}{again}.", submitted)


@command.command()
@on_task
@with_fence
@with_reason
@pass_app
def release(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
    """Give a task back undone, so that another may take it."""
    id = id_of(app, task, project)
    back = app.store.tasks.release(id, agent=identity.agent(agent), **options)
    app.say(f"{back.key} is {back.state} again.", back)


@command.command()
@on_task
@with_fence
@click.argument("reason")
@pass_app
def fail(
    app: App, /, task: str, reason: str, project: str | None, agent: str | None, **options: Any
) -> None:
    """Give a task up, with the reason; what needs it is blocked."""
    id = id_of(app, task, project)
    failed = app.store.tasks.fail(id, reason, agent=identity.agent(agent), **options)
    app.say(f"{failed.key} has failed.", failed)


@command.command()
@on_task
@click.option("--note", metavar="TEXT", help="For the record.")
@pass_app
def accept(app: App, task: str, project: str | None, agent: str | None, note: str | None) -> None:
    """Say that what was submitted is good; not for its doer."""
    id = id_of(app, task, project)
    done = app.store.tasks.accept(id, note=note, agent=identity.agent(agent))
    app.say(f"{done.key} is done.", done)


@command.command()
@on_task
@click.argument("reason")
@pass_app
def reject(app: App, task: str, reason: str, project: str | None, agent: str | None) -> None:
    """Send what was submitted back, with the reason; not for its doer."""
    id = id_of(app, task, project)
    back = app.store.tasks.reject(id, reason, agent=identity.agent(agent))
    app.say(f"{back.key} is {back.state} again.", back)


@command.command()
@click.argument("task", required=False)
@in_project
@pass_app
def check(app: App, task: str | None, project: str | None) -> None:
    """Run the check of a submitted TASK, or every check that waits, and judge by that."""
    if task is not None:
        judged = app.store.tasks.check(id_of(app, task, project))
        app.say(f"{judged.key} is {judged.state}.", judged)
        return
    found = list(iter(app.store.tasks.check_next, None))
    app.show_all(found, _columns(app), empty="No check waits to be run.")
