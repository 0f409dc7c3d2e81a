import click

from corral.interfaces.cli.app import App, Verb, pass_app


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
    words = [f"{each.file}: {each.did}" for each in did]
    app.say(
        "\n".join([f"{project.dir} is project {project.id}.", *words]),
        {"project": project, "files": did},
    )
