import os

import click

from corral.cli.app import App, Noun, pass_app
from corral.cli.task_view import read_list
from corral.kernel.errors import Invalid

COLUMNS = [
    ("AGENT", lambda member: member.agent),
    ("ROLE", lambda member: member.role),
    ("RUN", lambda member: member.run_id),
    ("DID", lambda member: member.did),
]


@click.group("team", cls=Noun, help="Agents that work together.")
def command() -> None:
    pass


@command.command()
@click.argument("file")
@click.option("--project", metavar="DIR", help="Where they work; otherwise as the file says.")
@pass_app
def start(app: App, file: str, project: str | None) -> None:
    """Start a lead and workers from a YAML or JSON FILE, each with its identity and its tools.

    The file has `lead` and `workers` (name, role, provider or command, model, instructions,
    limits, prompt, approve, env), and perhaps `goal`, `project` (a directory beside the file) and
    `tasks`. Starting it again starts those who do not run.
    """
    team = read_list(file)
    if not isinstance(team, dict):
        raise Invalid(f"{file} describes no team; it has a lead and workers.")
    beside = "." if file == "-" else os.path.dirname(file) or "."
    dir = project or os.path.join(beside, str(team.get("project") or "."))
    did = app.store_here.teams.start(team, dir=dir)
    app.show_all(did, COLUMNS, empty="There is nobody in it.")
