"""What the commands about races share: how one is named, how it looks, how it is waited for."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from corral.cli.app import App
from corral.cli.render import write_line
from corral.kernel.clock import format_duration
from corral.kernel.errors import NotFound
from corral.kernel.money import format_usd

if TYPE_CHECKING:
    from corral.domain.races.model import Attempt, Check, Race, Round

STAGES = {"preparing": 0, "running": 1, "checking": 2}
LOOK_SECONDS = 0.5

on_race = click.argument("race")
on_race_or_latest = click.argument("race", default="latest")


def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that may stay until something is to be chosen."""
    wait = click.option("--wait", is_flag=True, help="Stay until somebody has to choose.")
    from corral.cli.app import DURATION

    limit = click.option("--timeout", "wait_ms", type=DURATION, help="How long to stay at most.")
    return wait(limit(function))


def id_of(app: App, race: str) -> str:
    """The race that was named; `latest` is the last one of this directory's project."""
    if race != "latest":
        return race
    found = None
    with suppress(NotFound):  # a directory that is no project has none either
        project = app.project_id(".")
        assert project is not None
        found = app.store.races.latest(project)
    if found is None:
        raise NotFound("No race was started in this directory; `corral race list` shows all.")
    return found.id


def goes_on(race: "Race") -> bool:
    return any(each.goes_on for each in race.rounds)


def stay_or_leave(app: App, race: "Race", wait: bool, wait_ms: int | None) -> "Race":
    """Wait for a race, with its progress where somebody looks; or see to it that it goes on."""
    if wait:
        return watch(app, race.id, wait_ms)
    if goes_on(race) and not _is_afar(app):
        app.store.races.leave(race.id)
    return race


def _is_afar(app: App) -> bool:
    from corral import config

    return config.store_url(app.url).startswith(("http://", "https://"))


def watch(app: App, race: str, wait_ms: int | None) -> "Race":
    """Wait for a race; on a terminal its attempts are shown as they go."""
    if app.json or not sys.stderr.isatty():
        return app.store.races.wait(race, timeout_ms=wait_ms)
    ended: list[Any] = []

    def drive() -> None:
        try:
            ended.append(app.store.races.wait(race, timeout_ms=wait_ms))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    _show_progress(app, race, thread)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    found: Race = ended[0]
    return found


def _show_progress(app: App, race: str, thread: threading.Thread) -> None:
    from rich.progress import BarColumn, Progress, TextColumn

    from corral.cli.render import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]:<10} {task.fields[took]:>8} {task.fields[cost]:>9}"),
        TextColumn("[green]+{task.fields[added]}[/] [red]-{task.fields[removed]}[/]"),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}
        while thread.is_alive():
            for each in app.store.races.so_far(race):
                fields: dict[str, Any] = {
                    "completed": STAGES.get(each.state, 3),
                    "state": each.state,
                    "took": format_duration(each.elapsed_ms // 1_000 * 1_000)
                    if each.elapsed_ms
                    else "-",
                    "cost": format_usd(each.cost_micros),
                    "added": "-" if each.insertions is None else each.insertions,
                    "removed": "-" if each.deletions is None else each.deletions,
                }
                if each.attempt_id not in tasks:
                    name = f"{each.number} {each.agent or 'agent'}"
                    tasks[each.attempt_id] = bars.add_task(name, total=3, **fields)
                bars.update(tasks[each.attempt_id], **fields)
            thread.join(LOOK_SECONDS)


# -- showing -------------------------------------------------------------------------------------

COLUMNS = [
    ("ID", lambda race: race.id),
    ("STATE", lambda race: race.state),
    ("BUDGET", lambda race: format_usd(race.budget_micros)),
    ("STARTED", lambda race: _ago(race.created_at)),
    ("WHAT", lambda race: race.name),
]

ATTEMPTS = [
    ("NO", lambda attempt: f"{attempt.number}{'*' if attempt.is_winner else ''}"),
    ("STATE", lambda attempt: attempt.state),
    ("AGENT", lambda attempt: attempt.agent),
    ("RANK", lambda attempt: attempt.rank),
    ("SCORE", lambda attempt: attempt.score),
    ("CHECKS", lambda attempt: _checks(attempt)),
    ("TESTS", lambda attempt: _tests(attempt.checks)),
    ("LINES", lambda attempt: _lines(attempt)),
    ("COST", lambda attempt: format_usd(attempt.cost_micros)),
    ("TOOK", lambda attempt: _took(attempt)),
    ("RUN", lambda attempt: attempt.run_id),
    ("REASON", lambda attempt: attempt.reason),
]


WAY = ("WAY", lambda attempt: way(attempt.variation))
MAX_WAY = 24
IMPORTED = "of another tool, without a repository"


def show(app: App, race: "Race") -> None:
    """A race for people: each round with its attempts, verdicts and choice."""
    if app.json:
        app.show(race)
        return
    write_line(f"{race.id} {race.state}: {race.name}")
    begun = f"from {race.base_commit[:12]} in {race.repository}" if race.base_commit else IMPORTED
    write_line(f"{begun}{_money(race)}{_kept_by(race)}")
    for round in race.rounds:
        write_line("")
        write_line(headline(round))
        varied = any(attempt.variation for attempt in round.attempts)
        denied, retry = _denied(app, round)
        column = ("DENIED", lambda attempt: denied.get(attempt.id))  # noqa: B023 used at once
        columns = [*ATTEMPTS[:3], *([WAY] if varied else []), *ATTEMPTS[3:-2]]
        app.show_all(
            round.attempts, [*columns, *([column] if denied else []), *ATTEMPTS[-2:]], empty="-"
        )
        if denied:
            write_line(f"Start the race again with {retry} to approve these.")
        for verdict in round.verdicts:
            write_line(f"{verdict.judge} ({verdict.state}): {verdict.reason or 'at work'}"[:300])
        for graft in round.grafts:
            what = "kept" if graft.kept else "not kept"
            write_line(f"graft of {', '.join(graft.files)}, {what}: {graft.reason}")
    write_line("")
    write_line(next_step(race))


def _denied(app: App, round: "Round") -> tuple[dict[str, str], str]:
    """Return the denied tools of each attempt, by its id, and the options that approve them, as
    `corral show` names them for a run."""
    from corral.domain.runs.model import approval_options

    denied: dict[str, str] = {}
    tools: set[str] = set()
    for attempt in round.attempts:
        with suppress(NotFound):  # its run may have been deleted
            run = app.store.runs.get(attempt.run_id) if attempt.run_id else None
            if run is not None and run.denied_text:
                denied[attempt.id] = run.denied_text
                tools.update(run.denied)
    return denied, approval_options(tools)


def _money(race: "Race") -> str:
    spent, limit = race.spent_micros, race.budget_micros
    if limit is None:
        return "" if spent is None else f", spent {format_usd(spent)}"
    return f", spent {format_usd(spent or 0)} of {format_usd(limit)}"


def _kept_by(race: "Race") -> str:
    """What keeps its attempts in their worktrees, where that was asked for."""
    if race.plan.sandbox == "none":
        return ""
    found = {each.sandbox for round in race.rounds for each in round.attempts if each.sandbox}
    return f", sandbox {' and '.join(sorted(found)) or race.plan.sandbox}"


def way(variation: str | None) -> str:
    """The name of a template, or how a variation begins."""
    from corral.domain.races.variations import TEMPLATES

    for name, text in TEMPLATES.items():
        if text == variation:
            return name
    first = (variation or "-").partition("\n")[0]
    return first if len(first) <= MAX_WAY else f"{first[: MAX_WAY - 1]}…"


def headline(round: "Round") -> str:
    begun = f", from {round.base_commit[:12]}" if round.base_commit else ""
    text = f"Round {round.number} {round.state}{begun}"
    if round.winner_id is None:
        return text + (f": {round.reason}" if round.reason else "")
    winner = next(each for each in round.attempts if each.id == round.winner_id)
    why = f": {round.reason}" if round.reason else ""
    commit = f" ({round.winner_commit[:12]})" if round.winner_commit else ""
    return f"{text}; {winner.number} won{commit}, chosen by {round.decided_by}{why}"


def next_step(race: "Race") -> str:
    """What somebody could do next."""
    latest = race.latest
    if race.state != "active":
        return f"It is over{f': {race.reason}' if race.reason else '.'}"
    steps = {
        "running": f"Wait for it: corral race wait {race.id}",
        "selecting": f"Choose: corral race select {race.id} [ATTEMPT]",
        "failed": f"None passed: corral race retry {race.id} ATTEMPT, or corral race abandon "
        f"{race.id}",
        "completed": f"Go on: corral race next|merge|export {race.id}",
        "abandoned": f"Go on from an earlier round: corral race next {race.id} --from N",
    }
    return steps[latest.state]


def _ago(at: int) -> str:
    from corral.cli.render import ago

    return ago(at)


def _checks(attempt: "Attempt") -> str:
    if not attempt.checks:
        return "-"
    good = sum(check.exit_code == 0 for check in attempt.checks)
    return f"{'passed' if attempt.passed else 'failed'} {good}/{len(attempt.checks)}"


def _tests(checks: "list[Check]") -> str:
    told = [check.tests for check in checks if check.tests is not None]
    if not told:
        return "-"
    return f"{sum(each.passed for each in told)}/{sum(each.total for each in told)}"


def _lines(attempt: "Attempt") -> str:
    if attempt.insertions is None:
        return "-"
    return f"+{attempt.insertions} -{attempt.deletions}"


def _took(attempt: "Attempt") -> str:
    took = attempt.duration_ms
    return "-" if took is None else format_duration(took // 1_000 * 1_000 or took)
