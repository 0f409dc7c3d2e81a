"""`corral ask`: ask a question and wait for the answer."""

import sys

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body


@click.command(
    "ask",
    cls=Command,
    examples=[
        'corral ask "Deploy to production?" --option yes --option no --deadline 1h --fallback no',
        'corral ask "Which colour?" --to user:mia --no-wait',
    ],
)
@click.argument("text")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="ANSWER",
    help="Answer to choose from. Repeatable (default: any text is accepted).",
)
@click.option(
    "--allow-other",
    "free_text",
    is_flag=True,
    help="Accept answers other than the options.",
)
@click.option(
    "--to",
    "answerers",
    multiple=True,
    metavar="WHO",
    help="Answerer: user:NAME or agent:NAME. Repeatable (default: any person).",
)
@click.option(
    "--deadline",
    type=DURATION,
    help="Time until the question expires (default: questions.deadline_ms, 7d).",
)
@click.option(
    "--fallback", metavar="ANSWER", help="Answer if the question expires (default: none)."
)
@click.option(
    "--effect",
    metavar="TEXT",
    help="Description of what the answer will cause, shown with the question; or @FILE.",
)
@click.option(
    "--required-votes",
    type=int,
    default=1,
    show_default=True,
    help="Number of equal answers that are required.",
)
@click.option("--project", metavar="ID|DIR", help="Project of the question.")
@click.option("--key", help="Idempotency key: a repeated key returns the same question.")
@click.option("--no-wait", is_flag=True, help="Do not wait; the answer is sent as a letter.")
@click.option("--timeout", type=DURATION, help="Maximum time to wait (default: no limit).")
@pass_app
def command(
    app: App,
    text: str,
    options: tuple[str, ...],
    free_text: bool,
    answerers: tuple[str, ...],
    deadline: int | None,
    fallback: str | None,
    effect: str | None,
    required_votes: int,
    project: str | None,
    key: str | None,
    no_wait: bool,
    timeout: int | None,
) -> int:
    """Ask TEXT (or @FILE), wait for the answer and print it.

    Exits with 1 if there is no answer. If this command is interrupted, the answer is sent to the
    mailbox of the asker.
    """

    question = app.store.questions.ask(
        read_body(text, False),
        options=list(options),
        free_text=free_text,
        asker=app.caller.mailbox,
        answerers=list(answerers),
        deadline_ms=deadline,
        fallback=fallback,
        effect=read_body(effect, False) if effect else None,
        required_votes=required_votes,
        project=app.project_id(project),
        run=app.caller.run,
        key=key,
    )
    if no_wait:
        app.report(f"Asked {question.id}. The answer will be sent to {question.asker}.", question)
        return 0
    if not app.json:
        click.echo(f"Waiting for an answer: corral question answer {question.id} ANSWER", err=True)
    ended = app.store.questions.wait(question.id, timeout_ms=timeout)
    if ended.answer is None and not app.json:
        click.echo(f"{ended.id} is {ended.state} without an answer.", err=True)
    else:
        app.report(ended.answer or "", ended)
    # Mark the answer as received only after it is printed; otherwise it is sent as a letter.
    sys.stdout.flush()
    app.store.questions.acknowledge(ended.id)
    return 0 if ended.answer is not None else 1
