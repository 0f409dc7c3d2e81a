import os
from typing import Any

import click

from corral.cli.app import DURATION, App, Noun, paging, pairs, pass_app, read_body
from corral.cli.commands.race_selection import CHOOSING
from corral.cli.race_view import (
    COLUMNS,
    id_of,
    on_race,
    on_race_or_latest,
    stay_or_leave,
    waiting,
    watch,
    way,
)
from corral.cli.race_view import show as show_race


@click.group("race", cls=Noun, help="Several attempts at once; the winner goes on.")
def command() -> None:
    pass


for _choosing in CHOOSING:
    command.add_command(_choosing)


def who_and_how(function: Any) -> Any:
    """The options that say who tries, and in which ways."""
    for option in (
        click.option("--agents", metavar="A:N,B:N", help="Who tries, and how often each."),
        click.option("--vary", metavar="FILE", help="Variations: one a line, or parted by ---."),
        click.option("--variation", "given", multiple=True, metavar="TEXT", help="One variation."),
        click.option("--vary-auto", is_flag=True, help="Careful, minimal, test-first, bold."),
        click.option("--budget", metavar="USD", help="What it may cost in all."),
    ):
        function = option(function)
    return function


def _variations(vary: str | None, given: tuple[str, ...]) -> list[str]:
    from corral.domain.races.variations import read_text

    return [*(read_text(read_body(f"@{vary}", False)) if vary else []), *given]


def _micros(budget: str | None) -> int | None:
    from corral.kernel.money import parse_usd

    return parse_usd(budget) if budget is not None else None


def _place(project: str | None) -> str:
    """Where a race is run, in words that mean the same to a store that is served."""
    where = "." if project is None else project
    return os.path.abspath(where) if os.path.isdir(where) else where


@command.command()
@click.argument("prompt")
@who_and_how
@click.option("--check", "checks", multiple=True, metavar="CMD", help="A gate, run in order.")
@click.option("--report", "reports", multiple=True, metavar="PATH", help="A check's JUnit report.")
@click.option("--setup", metavar="CMD", help="Run in each worktree before its agent starts.")
@click.option("--rounds", type=int, default=1, show_default=True, help="Rounds that are planned.")
@click.option("--judge", metavar="AGENT", help="Who ranks what passed, blind.")
@click.option("--samples", type=int, default=2, show_default=True, help="Times the judge is asked.")
@click.option("--rubric", metavar="TEXT|@FILE", help="What the judge looks at.")
@click.option("--auto", is_flag=True, help="Choose the best and go on with the better half.")
@click.option("--enough", type=int, metavar="N", help="End the others when so many have passed.")
@click.option("--project", metavar="ID|DIR", help="Where; this directory by default.")
@click.option("--base", metavar="COMMIT", help="What all begin with; HEAD by default.")
@click.option(
    "--dirty",
    type=click.Choice(["refuse", "include", "ignore"]),
    default="refuse",
    show_default=True,
    help="Changes in no commit.",
)
@click.option("--name", help="What it is called.")
@click.option("--agent-timeout", "timeout_ms", type=DURATION, help="An agent's time.")
@click.option("--check-timeout", "check_timeout_ms", type=DURATION, help="A check's time.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable; values are stored.")
@click.option("--secret", multiple=True, metavar="K=REF", help="A variable, by reference.")
@click.option("--yes", "approvals", multiple=True, metavar="CLASS", help="edit, run, trust or all.")
@click.option("--sandbox", default="none", show_default=True, help="auto, bubblewrap, landlock.")
@click.option(
    "--commands-outside", is_flag=True, help="Set-up and checks run outside of the sandbox."
)
@click.option("--fork", "goes_on", is_flag=True, help="Later rounds go on with the winner's talk.")
@waiting
@pass_app
def start(
    app: App,
    /,
    prompt: str,
    vary: str | None,
    given: tuple[str, ...],
    budget: str | None,
    env: tuple[str, ...],
    secret: tuple[str, ...],
    approvals: tuple[str, ...],
    rubric: str | None,
    project: str | None,
    wait: bool,
    wait_ms: int | None,
    **options: Any,
) -> int:
    """Ask several agents for PROMPT (-, @FILE), each in a git worktree of its own."""
    race = app.store.races.start(
        read_body(prompt, False),
        variations=_variations(vary, given),
        budget_micros=_micros(budget),
        env=pairs(env, "--env"),
        secrets=pairs(secret, "--secret"),
        approvals=approvals or ("edit",),
        rubric=read_body(rubric, False) if rubric else None,
        project=_place(project),
        **options,
    )
    return _end(app, stay_or_leave(app, race, wait, wait_ms))


@command.command("next")
@on_race
@click.argument("prompt", required=False)
@who_and_how
@click.option("--from", "from_round", type=int, metavar="N", help="Go on from that round's winner.")
@waiting
@pass_app
def next_(
    app: App,
    /,
    race: str,
    prompt: str | None,
    vary: str | None,
    given: tuple[str, ...],
    budget: str | None,
    wait: bool,
    wait_ms: int | None,
    **options: Any,
) -> int:
    """Begin the next round from the winner; PROMPT as before when it is left out."""
    begun = app.store.races.next(
        id_of(app, race),
        prompt=read_body(prompt, False) if prompt is not None else None,
        variations=_variations(vary, given),
        budget_micros=_micros(budget),
        **options,
    )
    return _end(app, stay_or_leave(app, begun, wait, wait_ms))


def _end(app: App, race: Any) -> int:
    """Show a race; the exit code says whether its latest round came to nothing."""
    show_race(app, race)
    return 1 if race.latest.state == "failed" else 0


@command.command("list")
@click.option("--project", metavar="ID|DIR", help="Only those of a project.")
@click.option("--state", help="Only those in a state.")
@paging
@pass_app
def list_(app: App, /, project: str | None, **options: Any) -> None:
    """Races, newest first."""
    page = app.store.races.list(project=app.project_id(project), **options)
    app.show_page(page, COLUMNS, empty="No race yet; `corral race start` begins one.")


@command.command()
@on_race_or_latest
@pass_app
def show(app: App, race: str) -> None:
    """One race, this directory's latest by default: rounds, attempts, checks, verdicts, winners."""
    show_race(app, app.store.races.get(id_of(app, race)))


@command.command()
@on_race_or_latest
@click.option("--timeout", "wait_ms", type=DURATION, help="How long to stay at most.")
@pass_app
def wait(app: App, race: str, wait_ms: int | None) -> int:
    """Drive a race until somebody has to choose, or it is over."""
    if os.environ.get("CORRAL_RUN") is None:
        from corral.adapters import run_marks

        run_marks.leave_run()  # a process of a run may have started it (`drivers.start`)
    return _end(app, watch(app, id_of(app, race), wait_ms))


@command.command()
@on_race
@pass_app
def advance(app: App, race: str) -> None:
    """Do what can be done for a race now, and come back."""
    show_race(app, app.store.races.advance(id_of(app, race)))


@command.command()
@click.option(
    "--by",
    type=click.Choice(["agent", "model", "provider", "variation"]),
    default="agent",
    show_default=True,
)
@click.option("--since", "since_ms", type=DURATION, help="Only what was decided since, as in 30d.")
@pass_app
def winning(app: App, by: str, since_ms: int | None) -> None:
    """Who wins, how often, at what cost; the bounds hold with 95 % confidence."""
    from corral.kernel.money import format_usd

    app.show_all(
        app.store.races.winning(by=by, since_ms=since_ms),
        [
            (by.upper(), lambda row: way(row.key) if by == "variation" else row.key),
            ("ATTEMPTS", lambda row: row.attempts),
            ("PASSED", lambda row: row.passed),
            ("WINS", lambda row: row.wins),
            ("RATE", lambda row: f"{row.win_rate:.0%}"),
            ("BETWEEN", lambda row: f"{row.low:.0%} and {row.high:.0%}"),
            ("COST", lambda row: format_usd(row.cost_micros)),
            ("A WIN", lambda row: format_usd(row.micros_per_win)),
        ],
        empty="No round was decided yet.",
    )
