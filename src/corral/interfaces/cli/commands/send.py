import click

from corral.interfaces.cli.app import App, Verb, pass_app, read_body


@click.command("send", cls=Verb)
@click.argument("run")
@click.argument("text")
@click.option("--no-enter", is_flag=True, help="Leave the line open.")
@pass_app
def command(app: App, run: str, text: str, no_enter: bool) -> None:
    """Type a line into a run's terminal, or put it into its session's mailbox where it has none."""
    sent = app.store.runs.send(run, read_body(text, False), enter=not no_enter)
    app.say(
        f"Typed into {sent.run_id}."
        if sent.how == "typed"
        else f"{sent.run_id} takes no input now; {sent.letter_id} waits in its session's mailbox.",
        sent,
    )
