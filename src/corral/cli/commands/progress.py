import click

from corral.cli import identity
from corral.cli.app import App, Columns, Noun, paging, pass_app
from corral.cli.render import ago
from corral.cli.task_view import as_agent, id_of


def _columns(app: App) -> Columns:
    return [
        ("AGENT", lambda each: app.agent_name(each.agent_id)),
        ("SAID", lambda each: ago(each.updated_at)),
        ("PERCENT", lambda each: each.percent),
        ("TASK", lambda each: app.task_key(each.task_id)),
        ("CONTENT", lambda each: each.summary),
    ]


@click.group("progress", cls=Noun, help="How far agents say they have come.")
def command() -> None:
    pass


@command.command()
@click.argument("summary")
@click.option("--percent", type=int, help="From 0 to 100.")
@click.option("--task", metavar="ID|KEY", help="With which task.")
@as_agent
@pass_app
def report(
    app: App, summary: str, percent: int | None, task: str | None, agent: str | None
) -> None:
    """Say how far you are."""
    said = app.store.progress.report(
        summary,
        agent=identity.required_agent(agent),
        percent=percent,
        task=task,
        run=identity.run(),
    )
    app.say("It is written down.", said)


@command.command("list")
@click.option("--by", metavar="AGENT", help="Only of one agent.")
@click.option("--task", metavar="ID|KEY", help="Only with one task.")
@paging
@pass_app
def list_(app: App, by: str | None, task: str | None, after: str | None, limit: int) -> None:
    """How far everybody says they are."""
    of = id_of(app, task, None) if task else None
    whole = app.store.tasks.get(of).id if of else None
    page = app.store.progress.list(agent=by, task_id=whole, after=after, limit=limit)
    app.show_page(page, _columns(app), empty="Nobody has said anything.")
