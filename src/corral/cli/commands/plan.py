"""`corral plan`: the published plans of agents."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age
from corral.cli.task_view import agent_option, read_data_file

COLUMNS = [
    Column("OWNER", lambda plan: plan.subject, drop=1),
    Column("UPDATED", lambda plan: format_age(plan.updated_at)),
    Column("STEPS", lambda plan: len(plan.entries)),
    Column("LEFT", lambda plan: sum(step.status != "completed" for step in plan.entries)),
    Column("RUN", lambda plan: plan.run_id),
]

STEPS = [
    Column("STATUS", lambda step: step.status),
    Column("PRIORITY", lambda step: step.priority, drop=1),
    Column("CONTENT", lambda step: step.content, shrink="truncate"),
]


@click.group("plan", cls=CommandGroup, help="Publish and show the plans of agents.")
def command() -> None:
    pass


@command.command("set")
@click.argument("file")
@click.option("--project", metavar="ID|DIR", help="Project of the plan.")
@agent_option
@pass_app
def set_(app: App, file: str, project: str | None, agent: str | None) -> None:
    """Publish the steps in FILE (JSON or YAML; `-` reads standard input) as the agent's plan."""
    plan = app.store.plans.set(
        read_data_file(file),
        agent=app.require_agent(agent),
        run=app.caller.run,
        project_id=app.project_id(project),
    )
    app.report(f"Published a plan with {len(plan.entries)} steps.", plan)


@command.command()
@click.argument("owner")
@pass_app
def show(app: App, owner: str) -> None:
    """Show the latest plan of OWNER: an agent, or a run without an agent."""
    plan = app.store.plans.get(owner)
    if app.json:
        app.show(plan)
    else:
        app.show_list(plan.entries, STEPS, empty="The plan has no steps.")


@command.command("list")
@paging_options
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """List the latest plan of each agent."""
    page = app.store.plans.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No plans.")
