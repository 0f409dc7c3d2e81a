"""`corral decision`: record, propose and confirm decisions."""

import sys
from collections.abc import Callable
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body
from corral.cli.render import format_age

COLUMNS = [
    Column("ID", lambda decision: decision.id),
    Column("STATE", lambda decision: decision.state, is_state=True),
    Column("AUTHOR", lambda decision: decision.author),
    Column("CATEGORY", lambda decision: decision.category),
    Column("RECORDED", lambda decision: format_age(decision.created_at)),
    Column(
        "DEADLINE",
        lambda decision: format_age(decision.deadline_at) if decision.deadline_at else None,
        drop=1,
    ),
    Column("TITLE", lambda decision: decision.title, shrink="truncate"),
]

timeout_option = click.option(
    "--timeout", type=DURATION, help="Maximum time to wait (default: no limit)."
)


@click.group("decision", cls=CommandGroup, help="Record, propose and confirm decisions.")
def command() -> None:
    pass


@command.command(
    examples=[
        'corral decision record "Use PostgreSQL" --rationale "many writers" --alternative SQLite',
        'corral decision record "Drop Python 3.11" --propose --reviewer user:mia --wait',
    ]
)
@click.argument("title")
@click.option("--rationale", default="", metavar="TEXT|@FILE", help="Rationale.")
@click.option(
    "--alternative",
    "alternatives",
    multiple=True,
    help="Alternative that was considered. Repeatable.",
)
@click.option(
    "--category",
    default="general",
    show_default=True,
    help="Category, such as architecture or style.",
)
@click.option(
    "--propose",
    "confirm",
    is_flag=True,
    help="Propose the decision; it must be confirmed.",
)
@click.option(
    "--reviewer",
    "answerers",
    multiple=True,
    metavar="WHO",
    help="Reviewer: user:NAME or agent:NAME. Repeatable (default: any person).",
)
@click.option(
    "--deadline",
    type=DURATION,
    help="Time until the proposal expires (default: decisions.deadline_ms, 1d).",
)
@click.option(
    "--deadline-outcome",
    type=click.Choice(["reject", "dismiss"]),
    default="reject",
    show_default=True,
    help="Outcome of an expired proposal.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the outcome of the proposal; exit with 1 unless it is confirmed.",
)
@timeout_option
@click.option("--project", metavar="ID|DIR", help="Project of the decision.")
@click.option("--key", help="Idempotency key: a repeated key returns the same decision.")
@pass_app
def record(
    app: App,
    /,
    title: str,
    rationale: str,
    confirm: bool,
    deadline: int | None,
    wait: bool,
    timeout: int | None,
    project: str | None,
    **options: Any,
) -> int:
    """Record a decision, or propose one with --propose."""

    fields: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in options.items()
    }
    decision = app.store.decisions.record(
        title,
        rationale=read_body(rationale, False),
        confirm=confirm,
        deadline_ms=deadline,
        author=app.caller.mailbox,
        project=app.project_id(project),
        run=app.caller.run,
        **fields,
    )
    if not (confirm and wait):
        app.report(f"{decision.id} is {decision.state}.", decision)
        return 0
    ended = app.store.decisions.wait(decision.id, timeout_ms=timeout)
    app.report(f"{ended.id} is {ended.state}{_reason(ended)}.", ended)
    # Mark the outcome as received only after it is printed; otherwise a letter reports it.
    sys.stdout.flush()
    app.store.decisions.acknowledge(ended.id)
    return 0 if ended.state == "confirmed" else 1


@command.command("list")
@click.option("--proposed", is_flag=True, help="Only list proposals that wait for confirmation.")
@click.option("--project", metavar="ID|DIR", help="Only list decisions of this project.")
@paging_options
@pass_app
def list_(app: App, proposed: bool, project: str | None, after: str | None, limit: int) -> None:
    """List decisions, newest first."""
    page = app.store.decisions.list(
        proposed=proposed, project=app.project_id(project), after=after, limit=limit
    )
    app.show_page(page, COLUMNS, empty="No decisions. Record one with `corral decision record`.")


@command.command()
@click.argument("decision")
@pass_app
def show(app: App, decision: str) -> None:
    """Show a decision."""
    app.show(app.store.decisions.get(decision))


@command.command()
@click.argument("decision")
@timeout_option
@pass_app
def wait(app: App, decision: str, timeout: int | None) -> int:
    """Wait for the outcome of a proposed decision; exit with 1 unless it is confirmed."""
    ended = app.store.decisions.wait(decision, timeout_ms=timeout)
    app.report(f"{ended.id} is {ended.state}{_reason(ended)}.", ended)
    return 0 if ended.state in ("confirmed", "recorded") else 1


def _add_verdict(verdict: str, help: str) -> Callable[..., Any]:
    """Add a command that gives a verdict on decisions, all or none."""

    @click.argument("decisions", nargs=-1, required=True)
    @click.option("--reason", help="Reason, sent to the author.")
    @pass_app
    def review(app: App, decisions: tuple[str, ...], reason: str | None) -> None:

        ended = app.store.decisions.review_many(
            list(decisions), verdict, reason=reason, by=app.caller.actor
        )
        record = ended[0] if len(ended) == 1 else ended
        app.report(f"{', '.join(decision.id for decision in ended)}: {ended[0].state}.", record)

    return command.command(verdict, help=help)(review)


_add_verdict("confirm", "Confirm proposed decisions.")
_add_verdict("reject", "Reject proposed decisions.")
_add_verdict("dismiss", "Dismiss proposed decisions without a verdict.")


def _reason(decision: Any) -> str:
    return f" ({decision.reason})" if decision.reason else ""
