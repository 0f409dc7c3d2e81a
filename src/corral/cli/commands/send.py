import click

from corral.cli.app import App, Verb, pass_app, read_body


@click.command("send", cls=Verb)
@click.argument("run")
@click.argument("text")
@click.option("--no-enter", is_flag=True, help="Type the text without submitting it.")
@click.option("--dialog", metavar="ID", help="Answer only the dialog with this id.")
@pass_app
def command(app: App, run: str, text: str, no_enter: bool, dialog: str | None) -> None:
    """Send TEXT to a run: the answer to its question, or its next prompt.

    While the run asks something, TEXT must be one of the options (its number, its label, yes or
    no). A run without a terminal gets a letter in its session's mailbox.
    """
    sent = app.store.runs.send(run, read_body(text, False), enter=not no_enter, dialog=dialog)
    messages = {
        "typed": f"Typed into {sent.run_id}.",
        "answered": f"Answered {sent.run_id}: {sent.option}.",
        "mailed": f"{sent.run_id} accepts no input now. {sent.letter_id} waits in its session's "
        "mailbox.",
    }
    app.say(messages[sent.how], sent)
