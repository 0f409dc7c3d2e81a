import click

from corral.cli import identity
from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago
from corral.cli.task_view import as_agent, read_list

COLUMNS = [
    ("OF", lambda plan: plan.subject),
    ("SAID", lambda plan: ago(plan.updated_at)),
    ("STEPS", lambda plan: len(plan.entries)),
    ("LEFT", lambda plan: sum(step.status != "completed" for step in plan.entries)),
    ("RUN", lambda plan: plan.run_id),
]

STEPS = [
    ("STATUS", lambda step: step.status),
    ("PRIORITY", lambda step: step.priority),
    ("CONTENT", lambda step: step.content),
]


@click.group("plan", cls=Noun, help="What agents say they will do.")
def command() -> None:
    pass


@command.command("set")
@click.argument("file")
@click.option("--project", metavar="ID|DIR", help="The project that it belongs to.")
@as_agent
@pass_app
def set_(app: App, file: str, project: str | None, agent: str | None) -> None:
    """Keep the steps in FILE (JSON or YAML; - reads standard input) as the agent's plan."""
    plan = app.store.plans.set(
        read_list(file),
        agent=identity.required_agent(agent),
        run=identity.run(),
        project_id=app.project_id(project),
    )
    app.say(f"The plan has {len(plan.entries)} steps.", plan)


@command.command()
@click.argument("of")
@pass_app
def show(app: App, of: str) -> None:
    """The latest plan of an agent, or of a run without one."""
    plan = app.store.plans.get(of)
    if app.json:
        app.show(plan)
    else:
        app.show_all(plan.entries, STEPS, empty="The plan is empty.")


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """The latest plan of everybody who has one."""
    page = app.store.plans.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="Nobody has published a plan.")
