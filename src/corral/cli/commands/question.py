import click

from corral.cli.app import DURATION, App, Noun, paging, pass_app, read_body
from corral.cli.commands.ps import subject
from corral.cli.render import ago
from corral.domain.chat import model

COLUMNS = [
    ("ID", lambda question: question.id),
    ("STATE", lambda question: question.state),
    ("ASKER", lambda question: model.asker(question.asker)),
    ("ASKED", lambda question: ago(question.created_at)),
    ("DEADLINE", lambda question: ago(question.deadline_at)),
    ("OPTIONS", lambda question: ", ".join(question.options) or "any text"),
    ("CONTENT", lambda question: question.text),
]


DIALOGS = [
    ("RUN", lambda run: run.name or run.id),
    ("SINCE", lambda run: ago(run.attention_at)),
    ("OPTIONS", lambda run: ", ".join(run.dialog.options) or "at its terminal"),
    ("CONTENT", lambda run: " | ".join([run.dialog.question, *subject(run)])),
]
"""Columns for runs with an open dialog, which `corral send RUN OPTION` answers."""


@click.group("question", cls=Noun, help="Questions that wait for an answer; `corral ask` asks.")
def command() -> None:
    pass


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also those that are over.")
@click.option("--asker", metavar="MAILBOX", help="Only of this one, as agent:ada.")
@paging
@pass_app
def list_(app: App, all_: bool, asker: str | None, after: str | None, limit: int) -> None:
    """List open questions, newest first; then runs with an open dialog."""
    page = app.store.questions.list(all=all_, asker=asker, after=after, limit=limit)
    asking = [] if asker or after else app.store.runs.asking()
    if app.json:
        app.show([*page.items, *asking])
    elif page.items or not asking:
        app.show_page(page, COLUMNS, empty="No open questions.")
    if asking and not app.json:
        app.show_all(asking, DIALOGS, empty="")
        app.say("Answer with `corral send RUN OPTION`; without options: `corral attach RUN`.")


@command.command()
@click.argument("question")
@pass_app
def show(app: App, question: str) -> None:
    """One question, whole."""
    app.show(app.store.questions.get(question))


@command.command()
@click.argument("question")
@click.argument("answer")
@pass_app
def answer(app: App, question: str, answer: str) -> None:
    """Answer QUESTION with an option, its number, or a text (or @FILE)."""
    from corral import config

    said = app.store.questions.answer(question, read_body(answer, False), by=config.actor())
    if said.state == "open":
        agree = sum(vote.answer == said.votes[-1].answer for vote in said.votes)
        app.say(f"Your answer counts: {agree} of {said.needed} say {said.votes[-1].answer}.", said)
    elif said.state == "expired":
        app.say(f"Those who were asked do not agree; {model.asker(said.asker)} is told.", said)
    else:
        told = f"{said.id} is answered: {said.answer}; {model.asker(said.asker)} is told."
        app.say(told, said)


@command.command()
@click.argument("question")
@click.option("--reason", help="Why; it stands in the record.")
@pass_app
def withdraw(app: App, question: str, reason: str | None) -> None:
    """Take a question back."""
    from corral import config

    gone = app.store.questions.withdraw(question, reason=reason, by=config.mailbox())
    app.say(f"{gone.id} is withdrawn.", gone)


@command.command()
@click.argument("question")
@click.option("--timeout", type=DURATION, metavar="10m", help="How long to wait at the most.")
@pass_app
def wait(app: App, question: str, timeout: int | None) -> int:
    """Wait for an answer, and print it; exit code 1 when there is none."""
    ended = app.store.questions.wait(question, timeout_ms=timeout)
    if ended.answer is None:
        app.say(f"{ended.id} is {ended.state}; there is no answer.", ended)
        return 1
    app.say(ended.answer, ended)
    return 0
