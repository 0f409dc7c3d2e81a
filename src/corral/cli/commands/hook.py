"""`corral hook`: run the lock hooks of agent CLIs and git."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app


@click.command("hook", cls=Command)
@click.argument("provider")
@click.argument("event")
@pass_app
def command(app: App, provider: str, event: str) -> int:
    """Run a lock hook; called by agent CLIs and git.

    `corral lock install` sets these hooks up. PROVIDER is claude, codex, copilot, gemini or qwen,
    and EVENT is pre-tool-use or post-tool-use, with the JSON of the agent CLI on standard input;
    or PROVIDER is git and EVENT is pre-commit. A change of a file that another owner has locked is
    refused in the format that the caller expects.
    """
    from corral import hooks

    return hooks.run([provider, event], app.url)
