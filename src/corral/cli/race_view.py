"""Shared by the commands about races: options, waiting with progress, and display."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from corral.cli.columns import Column, Columns
from corral.cli.context import App
from corral.cli.render import write_line
from corral.kernel.clock import format_duration
from corral.kernel.errors import NotFound
from corral.kernel.money import format_usd

if TYPE_CHECKING:
    from corral.domain.races.model import Attempt, CheckResult, Race, Round

STAGES = {"preparing": 0, "running": 1, "checking": 2}
POLL_SECONDS = 0.5
INTERRUPTED_EXIT_CODE = 130

race_argument = click.argument("race")
race_or_latest_argument = click.argument("race", default="latest")


def wait_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--wait` and `--timeout` to a command that starts attempts or a judge."""
    wait = click.option("--wait", is_flag=True, help="Wait until a winner can be selected.")
    from corral.cli.parameters import DURATION

    timeout = click.option(
        "--timeout", "wait_ms", type=DURATION, help="Maximum time to wait (default: no limit)."
    )
    return wait(timeout(function))


def resolve_race(app: App, race: str) -> str:
    """Return the id of a race; `latest` is the newest race of the current project."""
    if race != "latest":
        return race
    latest = None
    with suppress(NotFound):  # the current directory is not a project
        project = app.project_id(".")
        assert project is not None
        latest = app.store.races.latest(project)
    if latest is None:
        raise NotFound("No race in this directory. List all races with `corral race list`.")
    return latest.id


def is_active(race: "Race") -> bool:
    """Return whether any round of the race has work to do."""
    return any(round.needs_driver for round in race.rounds)


def wait_or_detach(app: App, race: "Race", wait: bool, wait_ms: int | None) -> "Race":
    """Wait for a race, or start a background process that drives it."""
    if wait:
        return wait_with_progress(app, race.id, wait_ms)
    from corral import config

    if is_active(race) and not config.is_remote(app.store.address):
        app.store.races.hand_over(race.id)
    return race


def wait_with_progress(app: App, race: str, wait_ms: int | None) -> "Race":
    """Wait for a race, with a progress bar for each attempt on a terminal.

    Ctrl-C ends this process at once with 130. The guards of running checks end them, and the next
    driver repeats them.
    """
    races = app.store.races  # opened by this thread, which also closes the store
    results: list[Any] = []

    def drive() -> None:
        try:
            results.append(races.wait(race, timeout_ms=wait_ms))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=drive, daemon=True)
    try:
        thread.start()
        if app.json or not sys.stderr.isatty():
            thread.join()
        else:
            _show_progress(app, race, thread)
    except KeyboardInterrupt:
        click.echo(
            f"corral: Stopped waiting. {race} continues only with a driver: continue it with "
            f"`corral race wait {race}`, or end it with `corral race abandon {race}`.",
            err=True,
        )
        # The interpreter would wait for the threads of running checks. A killed driver is safe.
        os._exit(INTERRUPTED_EXIT_CODE)
    if isinstance(results[0], BaseException):
        raise results[0]
    result: Race = results[0]
    return result


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
            for progress in app.store.races.attempt_progress(race):
                fields: dict[str, Any] = {
                    "completed": STAGES.get(progress.state, 3),
                    "state": progress.state,
                    "took": format_duration(progress.elapsed_ms // 1_000 * 1_000)
                    if progress.elapsed_ms
                    else "-",
                    "cost": format_usd(progress.cost_micros),
                    "added": "-" if progress.insertions is None else progress.insertions,
                    "removed": "-" if progress.deletions is None else progress.deletions,
                }
                if progress.attempt_id not in tasks:
                    name = f"{progress.number} {progress.agent or 'agent'}"
                    tasks[progress.attempt_id] = bars.add_task(name, total=3, **fields)
                bars.update(tasks[progress.attempt_id], **fields)
            thread.join(POLL_SECONDS)


# -- display ------------------------------------------------------------------------------------

COLUMNS = [
    Column("ID", lambda race: race.id),
    Column("STATE", lambda race: race.state, is_state=True),
    Column("BUDGET", lambda race: format_usd(race.budget_micros)),
    Column("STARTED", lambda race: _age(race.created_at), drop=2),
    Column("WHAT", lambda race: race.name, shrink="truncate", drop=1),
]

MAX_VARIATION_NAME = 24
IMPORTED = "imported from another tool, without a repository"


def show_race(app: App, race: "Race") -> None:
    """Print a race: each round with its attempts, verdicts and winner."""
    if app.json:
        app.show(race)
        return
    write_line(f"{race.id} {race.state}: {race.name}")
    origin = f"from {race.base_commit[:12]} in {race.repository}" if race.base_commit else IMPORTED
    write_line(f"{origin}{_spending(race)}{_sandbox(race)}")
    for round in race.rounds:
        write_line("")
        write_line(headline(round))
        denied, retry = _denied(app, round)
        app.show_list(round.attempts, _attempt_columns(round, denied), empty="-")
        if denied:
            write_line(f"To approve these tools, start the race again with {retry}.")
        for verdict in round.verdicts:
            write_line(
                f"{verdict.judge} ({verdict.state}): {verdict.reason or 'in progress'}"[:300]
            )
        for graft in round.grafts:
            result = "kept" if graft.kept else "not kept"
            write_line(f"graft of {', '.join(graft.files)}, {result}: {graft.reason}")
    write_line("")
    write_line(next_step(race))


def _attempt_columns(round: "Round", denied: dict[str, str]) -> Columns:
    """Return the columns of a round's attempts; `denied` has the denied tools by attempt."""
    is_varied = any(attempt.variation for attempt in round.attempts)
    variation = Column("VARIATION", lambda attempt: variation_name(attempt.variation))
    denied_tools = Column("DENIED", lambda attempt: denied.get(attempt.id))
    return [
        Column("NO", lambda attempt: f"{attempt.number}{'*' if attempt.is_winner else ''}"),
        Column("STATE", lambda attempt: attempt.state, is_state=True),
        Column("AGENT", lambda attempt: attempt.agent, drop=3),
        *([variation] if is_varied else []),
        Column("RANK", lambda attempt: attempt.rank),
        Column("SCORE", lambda attempt: attempt.score),
        Column("CHECKS", lambda attempt: _checks(attempt)),
        Column("TESTS", lambda attempt: _tests(attempt.checks)),
        Column("LINES", lambda attempt: _lines(attempt)),
        Column("COST", lambda attempt: format_usd(attempt.cost_micros), drop=2),
        Column("TOOK", lambda attempt: _took(attempt)),
        *([denied_tools] if denied else []),
        Column("RUN", lambda attempt: attempt.run_id),
        Column("REASON", lambda attempt: attempt.reason, shrink="truncate", drop=1),
    ]


def _denied(app: App, round: "Round") -> tuple[dict[str, str], str]:
    """Return the denied tools of each attempt by its id, and the options that approve them."""
    from corral.domain.runs.denials import format_approval_options

    denied: dict[str, str] = {}
    tools: set[str] = set()
    for attempt in round.attempts:
        with suppress(NotFound):  # the run was deleted
            run = app.store.runs.get(attempt.run_id) if attempt.run_id else None
            if run is not None and run.denied_text:
                denied[attempt.id] = run.denied_text
                tools.update(run.denied)
    return denied, format_approval_options(tools)


def _spending(race: "Race") -> str:
    spent, limit = race.spent_micros, race.budget_micros
    if limit is None:
        return "" if spent is None else f", spent {format_usd(spent)}"
    return f", spent {format_usd(spent or 0)} of {format_usd(limit)}"


def _sandbox(race: "Race") -> str:
    """Return the sandboxes of the attempts, if a sandbox was requested."""
    if race.plan.sandbox == "none":
        return ""
    names = {
        attempt.sandbox for round in race.rounds for attempt in round.attempts if attempt.sandbox
    }
    return f", sandbox {' and '.join(sorted(names)) or race.plan.sandbox}"


def variation_name(variation: str | None) -> str:
    """Return the name of a variation template, or the beginning of a custom variation."""
    from corral.domain.races.variations import TEMPLATES

    for name, text in TEMPLATES.items():
        if text == variation:
            return name
    first = (variation or "-").partition("\n")[0]
    return first if len(first) <= MAX_VARIATION_NAME else f"{first[: MAX_VARIATION_NAME - 1]}…"


def headline(round: "Round") -> str:
    """Describe a round in one line: its state, base commit and winner."""
    base = f", from {round.base_commit[:12]}" if round.base_commit else ""
    text = f"Round {round.number} {round.state}{base}"
    reason = f": {round.reason}" if round.reason else ""
    if round.winner_id is None:
        return f"{text}{reason}"
    winner = next(attempt for attempt in round.attempts if attempt.id == round.winner_id)
    commit = f" ({round.winner_commit[:12]})" if round.winner_commit else ""
    return f"{text}; attempt {winner.number} won{commit}, selected by {round.decided_by}{reason}"


def next_step(race: "Race") -> str:
    """Return the commands that are useful in the current state of a race."""
    latest = race.latest
    if race.merged_commit is not None and race.merged_commit == latest.winner_commit:
        return f"The winner is merged. Remove its worktrees: corral race clean {race.id}"
    if race.state != "active":
        return f"The race is {race.state}{f': {race.reason}' if race.reason else '.'}"
    steps = {
        "running": f"Wait for it: corral race wait {race.id}",
        "selecting": f"Select the winner: corral race select {race.id} [ATTEMPT]",
        "failed": f"No attempt passed. Retry one: corral race retry {race.id} ATTEMPT, or give "
        f"up: corral race abandon {race.id}",
        "completed": f"Continue: corral race next|merge|export {race.id}",
        "abandoned": f"Continue from an earlier round: corral race next {race.id} --from N",
    }
    return steps[latest.state]


def _age(at: int) -> str:
    from corral.cli.render import format_age

    return format_age(at)


def _checks(attempt: "Attempt") -> str:
    if not attempt.checks:
        return "-"
    passed = sum(check.exit_code == 0 for check in attempt.checks)
    return f"{'passed' if attempt.passed else 'failed'} {passed}/{len(attempt.checks)}"


def _tests(checks: "list[CheckResult]") -> str:
    counts = [check.tests for check in checks if check.tests is not None]
    if not counts:
        return "-"
    return f"{sum(count.passed for count in counts)}/{sum(count.total for count in counts)}"


def _lines(attempt: "Attempt") -> str:
    if attempt.insertions is None:
        return "-"
    return f"+{attempt.insertions} -{attempt.deletions}"


def _took(attempt: "Attempt") -> str:
    duration = attempt.duration_ms
    return "-" if duration is None else format_duration(duration // 1_000 * 1_000 or duration)
