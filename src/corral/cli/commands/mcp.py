import click

from corral.cli.app import App, Verb, pass_app


@click.command("mcp", cls=Verb)
@pass_app
def command(app: App) -> int:
    """Serve an agent its tools by the Model Context Protocol, on standard input and output.

    Agent CLIs start it. Who calls, and where, is known by CORRAL_AGENT, CORRAL_RUN and
    CORRAL_SESSION; with the address of a daemon as the store, by CORRAL_TOKEN.
    """
    from corral.mcp import stdio

    return stdio.run(app.url)
