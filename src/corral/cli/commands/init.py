"""`corral init`: set up a directory as a project."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.render import write_line


@click.command("init", cls=Command, examples=["corral init", "corral init --agents ~/src/app"])
@click.argument("dir", default=".", type=click.Path())
@click.option(
    "--agents/--no-agents",
    default=None,
    help="Add a section about Corral to AGENTS.md and install a skill, or remove both.",
)
@pass_app
def command(app: App, dir: str, agents: bool | None) -> None:
    """Set up DIR as a project, with the settings of its .corral/config.toml.

    DIR is the current directory by default. Writes .corral/config.toml if it does not exist.
    """
    projects = app.local_store.projects
    project = projects.register(dir) if agents is False else projects.configure(dir)
    files = (
        []
        if agents is None
        else app.store.projects.install_agent_docs(project.dir, remove=not agents)
    )
    app.report(
        f"Registered {project.dir} as project {project.id}.", {"project": project, "files": files}
    )
    if not app.json:
        for file in files:
            write_line(f"{file.file}: {file.result}")
