import sys
from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import DURATION, App, Noun, paging, pass_app, read_body
from corral.cli.render import ago

COLUMNS = [
    ("ID", lambda decision: decision.id),
    ("STATE", lambda decision: decision.state),
    ("AUTHOR", lambda decision: decision.author),
    ("CATEGORY", lambda decision: decision.category),
    ("RECORDED", lambda decision: ago(decision.created_at)),
    ("DEADLINE", lambda decision: ago(decision.deadline_at) if decision.deadline_at else None),
    ("TITLE", lambda decision: decision.title),
]


@click.group("decision", cls=Noun, help="Choices that were recorded, and those to confirm.")
def command() -> None:
    pass


@command.command()
@click.argument("title")
@click.option("--why", "rationale", default="", metavar="TEXT|@FILE", help="The rationale.")
@click.option("--alternative", "alternatives", multiple=True, help="What else there was.")
@click.option("--category", default="general", show_default=True, help="As architecture, style.")
@click.option("--confirm", is_flag=True, help="Only propose it: somebody has to confirm it.")
@click.option("--of", "answerers", multiple=True, metavar="WHO", help="user:NAME or agent:NAME.")
@click.option("--deadline", type=DURATION, metavar="1h", help="From when on it is too late.")
@click.option(
    "--at-deadline",
    type=click.Choice(["reject", "dismiss"]),
    default="reject",
    show_default=True,
    help="What becomes of it when nobody confirms it in time.",
)
@click.option("--wait", is_flag=True, help="Wait for it; exit code 1 unless it is confirmed.")
@click.option("--timeout", type=DURATION, metavar="10m", help="How long to wait at the most.")
@click.option("--project", metavar="ID|DIR", help="The project that it belongs to.")
@click.option("--key", help="The same key is the same decision.")
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
    **given: Any,
) -> int:
    """Record a decision, or propose one."""
    from corral import config

    wishes: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    made = app.store.decisions.record(
        title,
        rationale=read_body(rationale, False),
        confirm=confirm,
        deadline_ms=deadline,
        author=config.mailbox(),
        project=app.project_id(project),
        run=config.run_id(),
        **wishes,
    )
    if not (confirm and wait):
        app.say(f"{made.id} is {made.state}.", made)
        return 0
    ended = app.store.decisions.wait(made.id, timeout_ms=timeout)
    app.say(f"{ended.id} is {ended.state}{_why(ended)}.", ended)
    sys.stdout.flush()  # heard only when it is out: else the letter must tell it
    app.store.decisions.hear(ended.id)
    return 0 if ended.state == "confirmed" else 1


@command.command("list")
@click.option("--proposed", is_flag=True, help="Those that wait to be confirmed.")
@click.option("--project", metavar="ID|DIR", help="Only of this project.")
@paging
@pass_app
def list_(app: App, proposed: bool, project: str | None, after: str | None, limit: int) -> None:
    """Decisions, newest first."""
    page = app.store.decisions.list(
        proposed=proposed, project=app.project_id(project), after=after, limit=limit
    )
    app.show_page(page, COLUMNS, empty="Nothing was decided; `corral decision record` does it.")


@command.command()
@click.argument("decision")
@pass_app
def show(app: App, decision: str) -> None:
    """One decision, whole."""
    app.show(app.store.decisions.get(decision))


@command.command()
@click.argument("decision")
@click.option("--timeout", type=DURATION, metavar="10m", help="How long to wait at the most.")
@pass_app
def wait(app: App, decision: str, timeout: int | None) -> int:
    """Wait until a proposed decision is judged; exit code 1 unless it is confirmed."""
    ended = app.store.decisions.wait(decision, timeout_ms=timeout)
    app.say(f"{ended.id} is {ended.state}{_why(ended)}.", ended)
    return 0 if ended.state in ("confirmed", "recorded") else 1


def _verdict(verdict: str, help: str) -> Callable[..., Any]:
    """A verb that judges one decision, or several: all of them, or none."""

    @click.argument("decisions", nargs=-1, required=True)
    @click.option("--reason", help="Why; the author is told.")
    @pass_app
    def judge(app: App, decisions: tuple[str, ...], reason: str | None) -> None:
        from corral import config

        ended = app.store.decisions.judge(
            list(decisions), verdict, reason=reason, by=config.actor()
        )
        told = ended[0] if len(ended) == 1 else ended
        app.say(f"{', '.join(each.id for each in ended)}: {ended[0].state}.", told)

    return command.command(verdict, help=help)(judge)


_verdict("confirm", "Say yes to DECISIONS.")
_verdict("reject", "Say no to DECISIONS.")
_verdict("dismiss", "Judge DECISIONS neither way.")


def _why(decision: Any) -> str:
    return f" ({decision.reason})" if decision.reason else ""
