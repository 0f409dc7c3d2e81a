"""`corral progress`: the reported progress of agents."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.render import format_age
from corral.cli.task_view import agent_option, resolve_task


def _columns(app: App) -> Columns:
    return [
        Column("AGENT", lambda progress: app.agent_name(progress.agent_id), drop=1),
        Column("UPDATED", lambda progress: format_age(progress.updated_at)),
        Column("PERCENT", lambda progress: progress.percent),
        Column("TASK", lambda progress: app.task_key(progress.task_id)),
        Column("CONTENT", lambda progress: progress.summary, shrink="truncate"),
    ]


@click.group("progress", cls=CommandGroup, help="Report and show the progress of agents.")
def command() -> None:
    pass


@command.command()
@click.argument("summary")
@click.option("--percent", type=int, help="Percentage done, from 0 to 100.")
@click.option("--task", metavar="ID|KEY", help="Task that the report is about.")
@agent_option
@pass_app
def report(
    app: App, summary: str, percent: int | None, task: str | None, agent: str | None
) -> None:
    """Report your progress."""
    progress = app.store.progress.report(
        summary,
        agent=app.require_agent(agent),
        percent=percent,
        task=task,
        run=app.caller.run,
    )
    app.report("Progress recorded.", progress)


@command.command("list")
@click.option("--agent", "by", metavar="NAME", help="Only list this agent.")
@click.option("--task", metavar="ID|KEY", help="Only list reports about this task.")
@paging_options
@pass_app
def list_(app: App, by: str | None, task: str | None, after: str | None, limit: int) -> None:
    """List the latest progress of each agent."""
    id = resolve_task(app, task, None) if task else None
    full_id = app.store.tasks.get(id).id if id else None
    page = app.store.progress.list(agent=by, task_id=full_id, after=after, limit=limit)
    app.show_page(page, _columns(app), empty="No progress was reported.")
