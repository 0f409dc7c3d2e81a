"""`corral mcp`: the MCP server on standard input and output."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app


@click.command("mcp", cls=Command)
@pass_app
def command(app: App) -> int:
    """Serve the MCP tools for agents on standard input and output.

    Agent CLIs start this command. CORRAL_AGENT, CORRAL_RUN and CORRAL_SESSION identify the caller;
    if the store is the URL of a daemon, CORRAL_TOKEN does.
    """
    from corral.mcp import stdio

    return stdio.run(app.url)
