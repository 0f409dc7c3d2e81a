"""`corral` alone: what runs, what waits for you, what failed, what it cost today."""

from typing import Any

from corral.cli.app import App
from corral.cli.commands.ps import shown_state
from corral.cli.render import ago, write_line, write_table
from corral.kernel.money import format_usd

RACES = 50
"""Races under way that are looked at."""
FIRST_STEPS = [
    ("corral run -- make test", "any command, tracked to its end"),
    (
        'corral run -d --agent claude --yes edit "fix it"',
        "an agent; close the terminal, it goes on",
    ),
    ('corral run --agent scripted "say hi; spend 9 5"', "no agent CLI, no account: to try it"),
    ("corral import claude", "what you did with Claude Code so far"),
    ("corral up", "the daemon and the dashboard"),
    ("corral --help", "everything else"),
]


def show_overview(app: App) -> None:
    found = app.store.insights.overview()
    if app.json:
        app.show(found)
        return
    for title, runs, columns in (
        ("Runs", found.active, RUNNING),
        ("Waits for you", found.attention, WAITING),
        ("Failed in the last 24 hours", found.failed, FAILED),
    ):
        if runs:
            write_line(f"{title}:")
            write_table(runs, columns)
            if columns is WAITING and any(run.dialog for run in runs):
                write_line("`corral question list` shows the questions and their options.")
            write_line("")
    if found.submitted:
        write_line("Tasks to accept or reject:")
        write_table(found.submitted, SUBMITTED)
        write_line("")
    _show_races(app)
    if not found.active:
        _show_what_to_do(new=not (found.recent or found.queued))
    for count, sentence in (
        (found.queued, "Queued: {}."),
        (found.open_questions, "Questions to answer: {} (`corral question list`)."),
        (found.proposed_decisions, "Decisions to confirm: {} (`corral decision list --proposed`)."),
        (
            max(found.submitted_tasks - len(found.submitted), 0),
            "More tasks to accept or reject: {} (`corral task list --state submitted`).",
        ),
        (found.dead_letters, "Letters that could not be delivered: {} (`corral mail dead`)."),
        (
            found.doubtful_letters,
            "Letters that may or may not have arrived: {} (`corral mail list --state unknown`).",
        ),
    ):
        if count:
            write_line(sentence.format(count))
    write_line(_cost(found.today))
    if found.more:
        write_line("There is more than is shown or counted here.")


def _show_races(app: App) -> None:
    active = app.store.insights.races(state="active", limit=RACES).items
    if undecided := [race for race in active if race.waits]:
        write_line("Races that wait for somebody:")
        write_table(undecided, UNDECIDED)
        write_line("")


def _show_what_to_do(*, new: bool) -> None:
    if not new:
        write_line("Nothing runs. `corral --help` says what there is.")
        return
    write_line("Nothing has run here yet. To begin:")
    width = max(len(command) for command, _ in FIRST_STEPS)
    for command, what in FIRST_STEPS:
        write_line(f"  {command:{width}}  {what}")


def _cost(today: Any) -> str:
    if not today.charges:
        return "Today (UTC): nothing was charged."
    without = (
        f", {today.unknown} of {today.charges} charges without a known cost"
        if today.unknown
        else ""
    )
    cost = "an unknown amount" if today.cost_micros is None else format_usd(today.cost_micros)
    return f"Today (UTC): {cost}, {today.tokens:,} tokens{without}."


RUNNING = [
    ("ID", lambda run: run.id),
    ("STATE", shown_state),
    ("NAME", lambda run: run.name),
    ("WHAT", lambda run: run.what or None),
    ("PROJECT", lambda run: run.project),
    ("STARTED", lambda run: ago(run.started_at) if run.started_at else "-"),
    ("COST", lambda run: format_usd(run.cost_micros)),
]
WAITING = [
    ("ID", lambda run: run.id),
    ("STATE", shown_state),
    ("NAME", lambda run: run.name),
    ("WHAT", lambda run: run.what or None),
    ("PROJECT", lambda run: run.project),
    ("SINCE", lambda run: ago(run.attention_at) if run.attention_at else "-"),
]
SUBMITTED = [
    ("ID", lambda task: task.id),
    ("KEY", lambda task: task.key),
    ("TITLE", lambda task: task.title),
    ("PROJECT", lambda task: task.project),
    ("SINCE", lambda task: ago(task.submitted_at)),
]
UNDECIDED = [
    ("ID", lambda race: race.id),
    ("ROUND", lambda race: race.rounds),
    ("STATE", lambda race: race.round_state),
    ("PASSED", lambda race: f"{race.can_win} of {race.attempts}"),
    ("RACE", lambda race: race.name),
]
FAILED = [
    ("ID", lambda run: run.id),
    ("STATE", shown_state),
    ("NAME", lambda run: run.name),
    ("WHAT", lambda run: run.what or None),
    ("PROJECT", lambda run: run.project),
    ("ENDED", lambda run: ago(run.ended_at)),
    ("REASON", lambda run: run.reason),
]
