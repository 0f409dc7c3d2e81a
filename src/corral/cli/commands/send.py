"""`corral send`: send input or a message to a run."""

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import read_body


@click.command(
    "send",
    cls=Command,
    examples=['corral send login "use the existing helper"', "corral send login yes"],
)
@click.argument("run")
@click.argument("text")
@click.option("--no-enter", is_flag=True, help="Type the text without submitting it.")
@click.option("--dialog", metavar="ID", help="Answer only the dialog with this id.")
@pass_app
def command(app: App, run: str, text: str, no_enter: bool, dialog: str | None) -> None:
    """Send TEXT to a run: the answer to its question, or its next prompt.

    While the run shows a dialog, TEXT must be one of its options (a number, a label, yes or no).
    A run without a terminal gets a letter in the mailbox of its session.
    """
    sent = app.store.runs.send(run, read_body(text, False), enter=not no_enter, dialog=dialog)
    messages = {
        "typed": f"Typed into {sent.run_id}.",
        "answered": f"Answered {sent.run_id}: {sent.option}.",
        "mailed": f"{sent.run_id} does not accept input now. Put {sent.letter_id} into the mailbox "
        "of its session.",
    }
    app.report(messages[sent.how], sent)
