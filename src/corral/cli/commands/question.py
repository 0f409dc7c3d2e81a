"""`corral question`: list and answer questions."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.commands.ps import subject
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body
from corral.cli.render import format_age
from corral.domain.chat import model

COLUMNS = [
    Column("ID", lambda question: question.id),
    Column("STATE", lambda question: question.state, is_state=True),
    Column("ASKER", lambda question: model.format_asker(question.asker), drop=2),
    Column("ASKED", lambda question: format_age(question.created_at), drop=3),
    Column("DEADLINE", lambda question: format_age(question.deadline_at), drop=4),
    Column("OPTIONS", lambda question: ", ".join(question.options) or "any text", drop=1),
    Column("CONTENT", lambda question: question.text, shrink="truncate"),
]


DIALOGS = [
    Column("RUN", lambda run: run.name or run.id),
    Column("SINCE", lambda run: format_age(run.attention_at)),
    Column("OPTIONS", lambda run: ", ".join(run.dialog.options) or "in its terminal", drop=1),
    Column(
        "CONTENT", lambda run: " | ".join([run.dialog.question, *subject(run)]), shrink="truncate"
    ),
]
"""Columns for runs with an open dialog, which `corral send RUN OPTION` answers."""


@click.group(
    "question",
    cls=CommandGroup,
    help="List and answer questions.\n\nAsk a question with `corral ask`.",
)
def command() -> None:
    pass


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include questions that are closed.")
@click.option(
    "--asker", metavar="MAILBOX", help="Only list questions of this mailbox, such as agent:ada."
)
@paging_options
@pass_app
def list_(app: App, all_: bool, asker: str | None, after: str | None, limit: int) -> None:
    """List open questions, newest first; then runs with an open dialog."""
    page = app.store.questions.list(all=all_, asker=asker, after=after, limit=limit)
    runs = [] if asker or after else app.store.runs.list_with_dialogs()
    if app.json:
        app.show([*page.items, *runs])
    elif page.items or not runs:
        app.show_page(page, COLUMNS, empty="No open questions.")
    if runs and not app.json:
        app.show_list(runs, DIALOGS, empty="")
        app.report("Answer with `corral send RUN OPTION`; without options: `corral attach RUN`.")


@command.command()
@click.argument("question")
@pass_app
def show(app: App, question: str) -> None:
    """Show a question."""
    app.show(app.store.questions.get(question))


@command.command(examples=["corral question answer qst_3 yes", "corral question answer qst_3 2"])
@click.argument("question")
@click.argument("answer")
@pass_app
def answer(app: App, question: str, answer: str) -> None:
    """Answer QUESTION with an option, the number of an option, a text or `@FILE`."""

    record = app.store.questions.answer(question, read_body(answer, False), by=app.caller.actor)
    asker = model.format_asker(record.asker)
    if record.state == "open":
        vote = record.votes[-1].answer
        count = sum(cast.answer == vote for cast in record.votes)
        app.report(f"Vote counted: {count} of {record.required_votes} for {vote}.", record)
    elif record.state == "expired":
        app.report(f"The votes do not agree; notified {asker}.", record)
    else:
        app.report(f"Answered {record.id}: {record.answer}. Notified {asker}.", record)


@command.command()
@click.argument("question")
@click.option("--reason", help="Reason, for the event log.")
@pass_app
def withdraw(app: App, question: str, reason: str | None) -> None:
    """Withdraw a question."""

    withdrawn = app.store.questions.withdraw(question, reason=reason, by=app.caller.mailbox)
    app.report(f"Withdrew {withdrawn.id}.", withdrawn)


@command.command()
@click.argument("question")
@click.option("--timeout", type=DURATION, help="Maximum time to wait (default: no limit).")
@pass_app
def wait(app: App, question: str, timeout: int | None) -> int:
    """Wait for an answer and print it; exit with 1 if there is none."""
    ended = app.store.questions.wait(question, timeout_ms=timeout)
    if ended.answer is None:
        app.report(f"{ended.id} is {ended.state} without an answer.", ended)
        return 1
    app.report(ended.answer, ended)
    return 0
