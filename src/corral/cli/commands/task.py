"""`corral task`: manage the tasks of a project and their dependencies."""

from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, TIMESTAMP, read_body
from corral.cli.render import format_age, write_line, write_table
from corral.cli.task_view import (
    agent_option,
    fence_option,
    project_option,
    read_data_file,
    reason_option,
    resolve_project,
    resolve_task,
    task_argument,
    task_fields,
)
from corral.cli.worktree_view import show_leftovers
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page

MAX_SHOWN_DEPENDENCIES = 5


def _columns(app: App) -> Columns:
    return [
        Column("KEY", lambda task: task.key),
        Column("STATE", lambda task: task.state, is_state=True),
        Column("ROLE", lambda task: task.role),
        Column("PRIORITY", lambda task: task.priority or None, drop=2),
        Column("DEPENDS ON", _dependencies),
        Column("ASSIGNEE", lambda task: app.agent_name(task.agent_id or task.assignee_id)),
        Column("TITLE", lambda task: task.title, shrink="truncate"),
        Column(
            "REASON", lambda task: task.reason or _conflict(app, task), shrink="truncate", drop=1
        ),
        Column("TASK ID", lambda task: task.id, drop=3),
    ]


def _dependencies(task: Any) -> str | None:
    keys = task.depends_on
    more = " …" * (len(keys) > MAX_SHOWN_DEPENDENCIES)
    return ", ".join(keys[:MAX_SHOWN_DEPENDENCIES]) + more or None


def _conflict(app: App, task: Any) -> str | None:
    return (
        f"shares files with {app.task_key(task.conflicts_with_id)}"
        if task.conflicts_with_id
        else None
    )


SNAPSHOT = [
    Column("KEY", lambda task: task.key),
    Column("STATE", lambda task: task.state or "unknown", is_state=True),
    Column("AGENT", lambda task: task.agent, drop=1),
    Column("LAST", lambda task: task.verb),
    Column("BY", lambda task: task.actor),
    Column("SINCE", lambda task: format_age(task.since) if task.since else None),
    Column("ID", lambda task: task.id),
    Column("TITLE", lambda task: task.title, shrink="truncate"),
]
SNAPSHOT_LOCKS = [
    Column("LOCKED", lambda lock: lock.path),
    Column("MODE", lambda lock: lock.mode),
    Column("OWNER", lambda lock: lock.owner, drop=1),
    Column("SINCE", lambda lock: format_age(lock.held_at)),
    Column("ID", lambda lock: lock.id),
]
TEMPLATES = [
    Column("NAME", lambda template: template.name),
    Column("TASKS", lambda template: ", ".join(part.key for part in template.parts)),
    Column("DESCRIPTION", lambda template: template.help, shrink="wrap"),
]
TASK = Column("TASK", lambda leftover: leftover.key or leftover.task_id)


@click.group("task", cls=CommandGroup, help="Manage tasks and their dependencies.")
def command() -> None:
    pass


# -- create ------------------------------------------------------------------------------------


@command.command(examples=["corral task declare tasks.yaml"])
@click.argument("file")
@project_option
@click.option("--lead", metavar="MAILBOX", help="Mailbox to notify of progress (default: yours).")
@agent_option
@pass_app
def declare(app: App, file: str, project: str | None, lead: str | None, agent: str | None) -> None:
    """Add the tasks in FILE, all or none.

    FILE is JSON or YAML: a list of tasks with key, title, description, role, files, depends_on,
    priority and check. `-` reads standard input.
    """
    tasks = app.store.tasks.declare(
        resolve_project(app, project),
        read_data_file(file),
        lead=lead,
        agent=app.acting_agent(agent),
    )
    ready = sum(task.state == "ready" for task in tasks)
    app.report(f"Declared {len(tasks)} tasks, {ready} ready.", tasks)


@command.command(
    examples=[
        'corral task add schema "Design the schema" --role builder',
        'corral task add api "Write the API" --depends-on schema --check "make test"',
    ]
)
@click.argument("key")
@click.argument("title", required=False)
@click.option("--role", help="Role of the agents that may claim the task (default: any).")
@click.option("--description", metavar="TEXT|@FILE", help="Description of the work.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="Path that the task will change. Repeatable.",
)
@click.option(
    "--depends-on",
    multiple=True,
    metavar="KEY",
    help="Task that must be done first. Repeatable.",
)
@click.option(
    "--priority", type=int, default=0, show_default=True, help="Priority; higher is claimed first."
)
@click.option("--check", metavar="CMD", help="Command that must succeed to accept the task.")
@click.option("--assignee", metavar="AGENT", help="Only agent that may claim the task.")
@click.option("--lead", metavar="MAILBOX", help="Mailbox to notify of progress (default: yours).")
@project_option
@agent_option
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
    """Add a task."""
    task = app.store.tasks.add(
        resolve_project(app, project),
        key,
        title,
        description=read_body(description, False) if description else None,
        agent=app.acting_agent(agent),
        **options,
    )
    app.report(f"Added task {task.key} ({task.id}); it is {task.state}.", task)


@command.command()
@pass_app
def templates(app: App) -> None:
    """List the built-in task templates."""
    app.show_list(app.store.tasks.templates(), TEMPLATES, empty="No templates.")


@command.command()
@click.argument("template")
@click.argument("title")
@click.option(
    "--key", required=True, help="Prefix of the task keys: KEY/build, KEY/review and so on."
)
@click.option(
    "--depends-on",
    multiple=True,
    metavar="KEY",
    help="Task that must be done first. Repeatable.",
)
@click.option("--check", metavar="CMD", help="Command that must succeed to accept the result.")
@project_option
@agent_option
@pass_app
def apply(
    app: App, /, template: str, title: str, project: str | None, agent: str | None, **options: Any
) -> None:
    """Add the tasks of TEMPLATE for one piece of work."""
    tasks = app.store.tasks.apply(
        resolve_project(app, project), template, title, agent=app.acting_agent(agent), **options
    )
    app.show_list(tasks, _columns(app), empty="The template has no tasks.")


# -- list and show -----------------------------------------------------------------------------


@command.command("list")
@project_option
@click.option("--state", help="Only list tasks in this state, such as ready, running or done.")
@click.option(
    "--agent",
    "by",
    metavar="NAME",
    help="Only list tasks that this agent has or had, in all projects.",
)
@click.option("--archived", is_flag=True, help="List archived tasks instead.")
@click.option(
    "--at", type=TIMESTAMP, metavar="TIME", help="Show the tasks and locks as of this time."
)
@paging_options
@pass_app
def list_(app: App, /, project: str | None, by: str | None, at: int | None, **options: Any) -> None:
    """List tasks, in the order in which they were declared."""
    if at is not None:
        _list_snapshot(app, resolve_project(app, project), at, by, **options)
        return
    app.store.try_write_before_read("task.release_due", app.store.tasks.release_due)
    project_id = resolve_project(app, project) if by is None or project is not None else None
    page = app.store.tasks.list(project=project_id, agent=by, **options)
    app.show_page(
        page,
        _columns(app),
        empty="No tasks. Add some with `corral task add` or `corral task declare`.",
    )


def _list_snapshot(
    app: App,
    project: str,
    at: int,
    by: str | None,
    state: str | None,
    archived: bool,
    **paging: Any,
) -> None:
    if by or state or archived:
        raise Invalid("--at cannot be combined with --agent, --state or --archived.")
    snapshot = app.store.insights.board_at(project, at, **paging)
    page = Page(snapshot.tasks, snapshot.next)
    app.show_page(page, SNAPSHOT, empty="There were no tasks at that time.")
    if snapshot.locks and not app.json:
        write_line("")
        write_table(snapshot.locks, SNAPSHOT_LOCKS)


@command.command()
@task_argument
@pass_app
def show(app: App, task: str, project: str | None, agent: str | None) -> None:
    """Show a task. --json shows all fields."""
    app.show(app.store.tasks.get(resolve_task(app, task, project)), task_fields(app))


@command.command()
@project_option
@pass_app
def graph(app: App, project: str | None) -> None:
    """Show the dependency graph and its critical path."""
    graph = app.store.tasks.graph(resolve_project(app, project))
    if app.json:
        app.show(graph)
        return
    critical = {*graph.critical_path}
    for task in graph.tasks:
        mark = "*" if task.id in critical else " "
        dependencies = f" ← {', '.join(task.depends_on)}" if task.depends_on else ""
        write_line(f"{mark} {task.state:<9} {task.key}{dependencies}")
    counts = ", ".join(f"{count} {state}" for state, count in sorted(graph.counts.items()))
    write_line(f"{counts}  (* critical path)" if counts else "No tasks.")


@command.command()
@project_option
@pass_app
def counts(app: App, project: str | None) -> None:
    """Show the number of tasks in each state."""
    counts = app.store.tasks.counts(resolve_project(app, project))
    app.show_mapping(dict(sorted(counts.items())), "STATE", "TASKS", empty="No tasks.")


# -- work --------------------------------------------------------------------------------------


@command.command(
    examples=[
        "corral task claim --agent ada",
        "corral task claim --agent ada --key schema --json",
    ]
)
@project_option
@click.option("--key", help="Only claim the task with this key.")
@click.option("--role", help="Only claim a task of this role (default: that of the agent).")
@click.option("--run", metavar="ID", help="Run that does the work (default: $CORRAL_RUN).")
@click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    help="Time until the claim expires unless renewed (default: tasks.lease_ms, 5m).",
)
@agent_option
@pass_app
def claim(
    app: App, /, project: str | None, agent: str | None, run: str | None, **options: Any
) -> None:
    """Claim the next ready task.

    Exits with 3 if no task is ready.
    """
    claimant = app.require_agent(agent)
    project_id = resolve_project(app, project)
    task = app.store.tasks.claim(project_id, claimant, run=run or app.caller.run, **options)
    if task is None:
        raise NotFound("No task is ready for this agent. See `corral task list`.")
    app.report(f"Claimed {task.key} ({task.id}, fence {task.fence}): {task.title}", task)


@command.command()
@task_argument
@fence_option
@click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    help="Time until the claim expires unless renewed (default: tasks.lease_ms, 5m).",
)
@pass_app
def renew(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
    """Renew the lease of a claimed task."""
    id = resolve_task(app, task, project)
    renewed = app.store.tasks.renew(id, agent=app.acting_agent(agent), **options)
    app.report(f"Renewed the lease of task {renewed.key}.", renewed)


@command.command(
    examples=[
        'corral task submit schema --text "Added 3 tables" --commit HEAD --ran "make test" 0',
    ]
)
@task_argument
@fence_option
@click.option("--text", metavar="TEXT|@FILE", help="Description of what was done.")
@click.option(
    "--commit", "commits", multiple=True, help="Commit that contains the work. Repeatable."
)
@click.option(
    "--file", "files", multiple=True, metavar="PATH", help="File that shows the result. Repeatable."
)
@click.option(
    "--ran",
    "commands",
    multiple=True,
    nargs=2,
    metavar="CMD CODE",
    help="Command that was run, and its exit status. Repeatable.",
)
@click.option("--evidence", metavar="JSON|@FILE", help="All evidence as one JSON object.")
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
    """Submit a claimed task as done, with evidence."""
    fields: dict[str, Any] = read_body(evidence, True) if evidence else {}
    if text:
        fields["text"] = read_body(text, False)
    for name, values in (("commits", commits), ("files", files)):
        if values:
            fields[name] = list(values)
    if commands:
        fields["commands"] = [
            {
                "command": line,
                "exit_code": int(code) if code.removeprefix("-").isdecimal() else code,
            }
            for line, code in commands
        ]
    id = resolve_task(app, task, project)
    before = app.store.tasks.get(id).submitted_at
    submitted = app.store.tasks.submit(id, fields, agent=app.acting_agent(agent), fence=fence)
    if before == submitted.submitted_at:
        sentence = (
            f"Task {submitted.key} was submitted before; it is {submitted.state}. The first "
            "evidence is kept."
        )
    else:
        sentence = f"Task {submitted.key} is {submitted.state}."
    app.report(sentence, submitted)


@command.command()
@task_argument
@fence_option
@reason_option
@pass_app
def release(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
    """Release a claimed task so that another agent can claim it."""
    id = resolve_task(app, task, project)
    released = app.store.tasks.release(id, agent=app.acting_agent(agent), **options)
    app.report(f"Released task {released.key}; it is {released.state}.", released)


@command.command()
@task_argument
@fence_option
@click.argument("reason")
@pass_app
def fail(
    app: App, /, task: str, reason: str, project: str | None, agent: str | None, **options: Any
) -> None:
    """Mark a claimed task as failed; tasks that depend on it are blocked."""
    id = resolve_task(app, task, project)
    failed = app.store.tasks.fail(id, reason, agent=app.acting_agent(agent), **options)
    app.report(f"Task {failed.key} failed.", failed)


# -- review ------------------------------------------------------------------------------------


@command.command(
    examples=["corral task accept schema", 'corral task accept tsk_4 --note "nice tests"']
)
@task_argument
@click.option("--note", metavar="TEXT", help="Note, for the event log.")
@pass_app
def accept(app: App, task: str, project: str | None, agent: str | None, note: str | None) -> None:
    """Approve a submitted task. The agent that did the work cannot approve it."""
    id = resolve_task(app, task, project)
    accepted = app.store.tasks.accept(id, note=note, agent=app.acting_agent(agent))
    app.report(f"Task {accepted.key} accepted.", accepted)


@command.command()
@task_argument
@click.argument("reason")
@pass_app
def reject(app: App, task: str, reason: str, project: str | None, agent: str | None) -> None:
    """Reject a submitted task with a reason. The agent that did the work cannot reject it."""
    id = resolve_task(app, task, project)
    rejected = app.store.tasks.reject(id, reason, agent=app.acting_agent(agent))
    app.report(f"Task {rejected.key} rejected; it is {rejected.state} again.", rejected)


@command.command()
@click.argument("task", required=False)
@project_option
@pass_app
def check(app: App, task: str | None, project: str | None) -> None:
    """Run the check of a submitted TASK, or all pending checks; accept or reject by the result."""
    if task is not None:
        checked = app.store.tasks.check(resolve_task(app, task, project))
        app.report(f"Task {checked.key} is {checked.state}.", checked)
        return
    tasks = list(iter(app.store.tasks.check_next, None))
    app.show_list(tasks, _columns(app), empty="No checks are pending.")


# -- manage ------------------------------------------------------------------------------------


def _add_transition(verb: str, help: str, *, reason: bool) -> None:
    """Add a command that changes the state of a task by the transition `verb`."""

    @task_argument
    @pass_app
    def change(
        app: App, /, task: str, project: str | None, agent: str | None, **options: Any
    ) -> None:
        changed = getattr(app.store.tasks, verb)(
            resolve_task(app, task, project), agent=app.acting_agent(agent), **options
        )
        app.report(f"Task {changed.key} is {changed.state}.", changed)

    command.command(verb, help=help)(reason_option(change) if reason else change)


_add_transition("retry", "Make a failed task ready again.", reason=False)
_add_transition("reopen", "Reopen a done, skipped or cancelled task.", reason=True)
_add_transition("pause", "Prevent a task from being claimed until it is resumed.", reason=True)
_add_transition("resume", "Allow a paused task to be claimed again.", reason=False)
_add_transition("skip", "Skip a task; tasks that depend on it continue without it.", reason=True)
_add_transition("cancel", "Cancel a task; tasks that depend on it are blocked.", reason=True)


@command.command()
@task_argument
@click.argument("to", required=False)
@pass_app
def reassign(app: App, task: str, to: str | None, project: str | None, agent: str | None) -> None:
    """Assign a task to the agent TO; without TO, any agent of its role may claim it."""
    id = resolve_task(app, task, project)
    assigned = app.store.tasks.reassign(id, to, agent=app.acting_agent(agent))
    app.report(
        f"Assigned task {assigned.key} to {to or 'any agent of its role'}; it is {assigned.state}.",
        assigned,
    )


@command.command()
@task_argument
@click.argument("on", nargs=-1, required=True)
@pass_app
def depend(
    app: App, task: str, on: tuple[str, ...], project: str | None, agent: str | None
) -> None:
    """Add dependencies: TASK waits for the tasks ON."""
    id = resolve_task(app, task, project)
    changed = app.store.tasks.depend(id, on, agent=app.acting_agent(agent))
    app.report(
        f"Task {changed.key} depends on {', '.join(changed.depends_on)}; it is {changed.state}.",
        changed,
    )


@command.command()
@task_argument
@click.argument("on", nargs=-1, required=True)
@pass_app
def undepend(
    app: App, task: str, on: tuple[str, ...], project: str | None, agent: str | None
) -> None:
    """Remove dependencies of TASK on the tasks ON."""
    id = resolve_task(app, task, project)
    changed = app.store.tasks.undepend(id, on, agent=app.acting_agent(agent))
    app.report(f"Task {changed.key} is {changed.state}.", changed)


@command.command()
@task_argument
@click.option("--title", help="New title.")
@click.option(
    "--description", metavar="TEXT|@FILE", help="New description; an empty text removes it."
)
@click.option("--role", help="New role; an empty text allows any role.")
@click.option("--priority", type=int, help="New priority; higher is claimed first.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="Path that the task will change. Repeatable.",
)
@pass_app
def edit(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
    """Change the title, description, role, priority or files of a task."""
    changes = {name: value for name, value in options.items() if value not in (None, ())}
    if changes.get("description"):
        changes["description"] = read_body(changes["description"], False)
    id = resolve_task(app, task, project)
    edited = app.store.tasks.edit(id, agent=app.acting_agent(agent), **changes)
    app.report(f"Changed task {edited.key}.", edited)


@command.command()
@click.argument("task", required=False)
@project_option
@click.option(
    "--ended",
    is_flag=True,
    help="Archive all tasks that have ended and that no open task depends on.",
)
@agent_option
@pass_app
def archive(
    app: App, task: str | None, project: str | None, ended: bool, agent: str | None
) -> None:
    """Archive a task that has ended: it leaves the lists, and its key can be reused."""
    if (task is not None) == ended:
        raise click.UsageError("Give a task, or --ended.")
    if task is None:
        count = app.store.tasks.archive_ended(resolve_project(app, project))
        app.report(f"Archived {count} tasks.", {"archived": count})
        return
    id = resolve_task(app, task, project)
    archived = app.store.tasks.archive(id, agent=app.acting_agent(agent))
    app.report(f"Archived task {archived.key}.", archived)


@command.command()
@project_option
@click.option("--yes", "confirm", is_flag=True, help="Remove them; without this, only list them.")
@pass_app
def clean(app: App, project: str | None, confirm: bool) -> None:
    """Remove worktrees of ended tasks whose work is committed and merged."""
    leftovers = app.store.tasks.clean(resolve_project(app, project), confirm=confirm)
    show_leftovers(app, leftovers, TASK, confirmed=confirm)


@command.command()
@task_argument
@click.argument("to")
@click.option("--context", metavar="TEXT|@FILE", help="Additional context for the agent.")
@click.option(
    "--deadline",
    "within",
    type=DURATION,
    help="Time until the delegation expires.",
)
@click.option(
    "--parent",
    metavar="ID",
    help="Delegation that this one belongs to.",
)
@pass_app
def delegate(
    app: App,
    task: str,
    to: str,
    project: str | None,
    agent: str | None,
    context: str | None,
    within: int | None,
    parent: str | None,
) -> None:
    """Delegate TASK to the agent TO; the result is sent back as a letter."""
    delegation = app.store.tasks.delegate(
        resolve_task(app, task, project),
        to,
        context=read_body(context, False) if context else None,
        deadline_at=None if within is None else app.store.now() + within,
        parent=parent,
        agent=app.acting_agent(agent),
    )
    app.report(f"Delegated to {delegation.to_mailbox} ({delegation.id}).", delegation)
