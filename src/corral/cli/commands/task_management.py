"""The verbs of `corral task` with which whoever leads the work steers it."""

from typing import Any

import click

from corral.cli import identity
from corral.cli.app import DURATION, App, Verb, pass_app, read_body
from corral.cli.task_view import as_agent, id_of, in_project, on_task, project_of, with_reason
from corral.cli.worktree_view import show_leftovers


def _steer(verb: str, help: str, *, reason: bool) -> click.Command:
    """A command that takes a task along a move, and says in which state it is then."""

    @on_task
    @pass_app
    def act(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
        moved = getattr(app.store.tasks, verb)(
            id_of(app, task, project), agent=identity.agent(agent), **options
        )
        app.say(f"{moved.key} is {moved.state}.", moved)

    return click.command(verb, cls=Verb, help=help)(with_reason(act) if reason else act)


retry = _steer("retry", "Let a failed task be done again.", reason=False)
reopen = _steer("reopen", "Let a done, skipped or cancelled task be done after all.", reason=True)
pause = _steer("pause", "Let nobody take a task until it is resumed.", reason=True)
resume = _steer("resume", "Let a paused task be taken again.", reason=False)
skip = _steer("skip", "Leave a task out; what needs it goes on without.", reason=True)
cancel = _steer("cancel", "Give a task up; what needs it is blocked.", reason=True)


@click.command(cls=Verb)
@on_task
@click.argument("to", required=False)
@pass_app
def reassign(app: App, task: str, to: str | None, project: str | None, agent: str | None) -> None:
    """Say which agent is to do a task; without one, any of its role."""
    id = id_of(app, task, project)
    given = app.store.tasks.reassign(id, to, agent=identity.agent(agent))
    app.say(f"{given.key} is {given.state}, for {to or 'anybody of its role'}.", given)


@click.command(cls=Verb)
@on_task
@click.argument("on", nargs=-1, required=True)
@pass_app
def depend(
    app: App, task: str, on: tuple[str, ...], project: str | None, agent: str | None
) -> None:
    """Let TASK wait for the tasks ON as well."""
    id = id_of(app, task, project)
    waits = app.store.tasks.depend(id, on, agent=identity.agent(agent))
    app.say(f"{waits.key} is {waits.state}, and waits for {', '.join(waits.depends_on)}.", waits)


@click.command(cls=Verb)
@on_task
@click.argument("on", nargs=-1, required=True)
@pass_app
def undepend(
    app: App, task: str, on: tuple[str, ...], project: str | None, agent: str | None
) -> None:
    """Let TASK no longer wait for the tasks ON."""
    id = id_of(app, task, project)
    freed = app.store.tasks.undepend(id, on, agent=identity.agent(agent))
    app.say(f"{freed.key} is {freed.state}.", freed)


@click.command(cls=Verb)
@on_task
@click.option("--title", help="What it is about.")
@click.option("--description", metavar="TEXT|@FILE", help="What is to be done; '' takes it away.")
@click.option("--role", help="Who may take it; '' is anybody.")
@click.option("--priority", type=int, help="Higher is taken first.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A path that it changes.")
@pass_app
def edit(app: App, /, task: str, project: str | None, agent: str | None, **options: Any) -> None:
    """Change what a task says."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if given.get("description"):
        given["description"] = read_body(given["description"], False)
    id = id_of(app, task, project)
    changed = app.store.tasks.edit(id, agent=identity.agent(agent), **given)
    app.say(f"{changed.key} is changed.", changed)


@click.command(cls=Verb)
@click.argument("task", required=False)
@in_project
@click.option("--ended", is_flag=True, help="All that are over and that nothing open needs.")
@as_agent
@pass_app
def archive(
    app: App, task: str | None, project: str | None, ended: bool, agent: str | None
) -> None:
    """Take a task that is over out of the lists; its key may be used again."""
    if ended or task is None:
        count = app.store.tasks.archive_ended(project_of(app, project))
        app.say(f"{count} tasks are archived.", {"archived": count})
        return
    id = id_of(app, task, project)
    gone = app.store.tasks.archive(id, agent=identity.agent(agent))
    app.say(f"{gone.key} is archived.", gone)


TASK = ("TASK", lambda left: left.key or left.task_id)


@click.command(cls=Verb)
@in_project
@click.option("--yes", "confirm", is_flag=True, help="Do it; without this it is only shown.")
@pass_app
def clean(app: App, project: str | None, confirm: bool) -> None:
    """Remove the worktrees of tasks that are over, if nothing in them would be missed."""
    found = app.store.tasks.clean(project_of(app, project), confirm=confirm)
    show_leftovers(app, found, TASK, confirmed=confirm)


@click.command(cls=Verb)
@on_task
@click.argument("to")
@click.option("--context", metavar="TEXT|@FILE", help="What else the agent should know.")
@click.option("--within", type=DURATION, help="How long it may take.")
@click.option("--part-of", "parent", metavar="ID", help="The delegation that it is a part of.")
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
    """Hand TASK to the agent TO; its end comes back as a letter."""
    made = app.store.tasks.delegate(
        id_of(app, task, project),
        to,
        context=read_body(context, False) if context else None,
        deadline_at=None if within is None else app.store.now() + within,
        parent=parent,
        agent=identity.agent(agent),
    )
    app.say(f"{made.id} went to {made.to_mailbox}.", made)


LEADING: tuple[click.Command, ...] = (
    retry,
    reopen,
    pause,
    resume,
    skip,
    cancel,
    reassign,
    depend,
    undepend,
    edit,
    archive,
    clean,
    delegate,
)
