"""`corral team`: start a team of agents from a file."""

import os

import click

from corral.cli.click_classes import CommandGroup
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.task_view import read_data_file
from corral.kernel.errors import Invalid

COLUMNS = [
    Column("AGENT", lambda member: member.agent, drop=1),
    Column("ROLE", lambda member: member.role),
    Column("RUN", lambda member: member.run_id),
    Column("RESULT", lambda member: member.result),
]


@click.group("team", cls=CommandGroup, help="Start a team of agents from a file.")
def command() -> None:
    pass


@command.command(examples=["corral team start team.yaml"])
@click.argument("file")
@click.option("--project", metavar="DIR", help="Project directory (default: that of the file).")
@pass_app
def start(app: App, file: str, project: str | None) -> None:
    """Start the lead and the workers defined in FILE (YAML or JSON).

    FILE has `lead` and `workers` (name, role, provider or command, model, instructions, limits,
    prompt, approve, env), and optionally `goal`, `project` (a directory relative to FILE) and
    `tasks`. Members that are already running are not started again.
    """
    team = read_data_file(file)
    if not isinstance(team, dict):
        raise Invalid(f"{file} is not a team: expected an object with `lead` and `workers`.")
    base = "." if file == "-" else os.path.dirname(file) or "."
    directory = project or os.path.join(base, str(team.get("project") or "."))
    members = app.local_store.teams.start(team, dir=directory)
    app.show_list(members, COLUMNS, empty="The team has no members.")
