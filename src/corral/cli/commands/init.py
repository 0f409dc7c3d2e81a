import click

from corral.cli.app import App, Verb, pass_app
from corral.cli.render import write_line


@click.command("init", cls=Verb)
@click.argument("dir", default=".", type=click.Path())
@click.option(
    "--agents/--no-agents",
    default=None,
    help="Tell agents of Corral: a section of AGENTS.md and a skill; or take them out again.",
)
@pass_app
def command(app: App, dir: str, agents: bool | None) -> None:
    """Make DIR a project, as its .corral/config.toml tells (it is written where there is none), and
    perhaps tell the agents that work there how to work together."""
    projects = app.store_here.projects
    project = projects.register(dir) if agents is False else projects.configure(dir)
    did = [] if agents is None else app.store.projects.equip(project.dir, remove=not agents)
    app.say(f"{project.dir} is project {project.id}.", {"project": project, "files": did})
    if not app.json:
        for each in did:
            write_line(f"{each.file}: {each.did}")
