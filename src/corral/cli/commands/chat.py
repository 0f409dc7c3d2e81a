"""`corral chat`: chat with an agent in the terminal."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION


@click.command(
    "chat",
    cls=Command,
    examples=["corral chat --agent ada", 'corral chat --agent ada --once "What is left to do?"'],
)
@click.option("--agent", metavar="NAME", help="Agent to chat with (default: the only agent).")
@click.option("--once", metavar="TEXT", help="Send one message, print the answer and exit.")
@click.option(
    "--timeout",
    type=DURATION,
    help="Maximum time to wait for an answer (default: no limit).",
)
@pass_app
def command(app: App, agent: str | None, once: str | None, timeout: int | None) -> int:
    """Chat with an agent in this terminal.

    Each agent and directory has its own conversation, which continues where it ended. Answers that
    arrive after you exit are shown next time. Type /help for commands, an empty line to check for
    new answers, Ctrl-D to exit.
    """
    from corral.cli.chat_client import TerminalChat

    chat = TerminalChat(app, agent, timeout)
    return chat.send_once(once) if once is not None else chat.run()
