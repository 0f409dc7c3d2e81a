"""`corral` without a command: active runs, pending input, failures, and today's cost."""

from typing import Any

from corral.cli.columns import Column
from corral.cli.commands.ps import shown_state
from corral.cli.context import App
from corral.cli.render import format_age, write_line, write_table
from corral.kernel.money import format_usd

MAX_RACES = 50
"""Maximum number of active races that are checked for a pending selection."""
FIRST_STEPS = [
    ("corral run -- make test", "run any command under supervision"),
    (
        'corral run -d --agent claude --yes edit "fix it"',
        "run an agent in the background",
    ),
    ('corral run --agent scripted "say hi; spend 9 5"', "try it without an agent CLI or account"),
    ("corral import claude", "import your Claude Code sessions"),
    ("corral up", "start the daemon and the dashboard"),
    ("corral --help", "list all commands"),
]


def show_overview(app: App) -> None:
    """Print the overview."""
    overview = app.store.insights.overview()
    if app.json:
        app.show(overview)
        return
    for title, runs, columns in (
        ("Active", overview.active, RUNNING),
        ("Needs your input", overview.attention, WAITING),
        ("Failed in the last 24 hours", overview.failed, FAILED),
    ):
        if runs:
            write_line(f"{title}:")
            write_table(runs, columns)
            if columns is WAITING and any(run.dialog for run in runs):
                write_line("List the questions and their options with `corral question list`.")
            write_line("")
    if overview.submitted:
        write_line("Tasks to accept or reject:")
        write_table(overview.submitted, SUBMITTED)
        write_line("")
    _show_races(app)
    if not overview.active:
        _show_next_steps(is_new=not (overview.recent or overview.queued))
    for count, sentence in (
        (overview.queued, "Queued runs: {}."),
        (overview.open_questions, "Questions to answer: {} (`corral question list`)."),
        (
            overview.proposed_decisions,
            "Decisions to confirm: {} (`corral decision list --proposed`).",
        ),
        (
            max(overview.submitted_tasks - len(overview.submitted), 0),
            "More tasks to accept or reject: {} (`corral task list --state submitted`).",
        ),
        (overview.dead_letters, "Dead letters: {} (`corral mail dead`)."),
        (
            overview.unconfirmed_letters,
            "Letters with unconfirmed delivery: {} (`corral mail list --state unconfirmed`).",
        ),
    ):
        if count:
            write_line(sentence.format(count))
    write_line(_cost(overview.today))
    if overview.more:
        write_line("The overview is incomplete: some lists were cut.")


def _show_races(app: App) -> None:
    active = app.store.insights.races(state="active", limit=MAX_RACES).items
    if undecided := [race for race in active if race.waits]:
        write_line("Races that need a decision:")
        write_table(undecided, UNDECIDED)
        write_line("")


def _show_next_steps(*, is_new: bool) -> None:
    if not is_new:
        write_line("No runs are active. List all commands with `corral --help`.")
        return
    write_line("No runs yet. First steps:")
    width = max(len(command) for command, _ in FIRST_STEPS)
    for command, description in FIRST_STEPS:
        write_line(f"  {command:{width}}  {description}")


def _cost(today: Any) -> str:
    if not today.charges:
        return "Today (UTC): no charges."
    unpriced = (
        f", {today.unpriced} of {today.charges} charges of unknown cost" if today.unpriced else ""
    )
    cost = "unknown cost" if today.cost_micros is None else format_usd(today.cost_micros)
    return f"Today (UTC): {cost}, {today.tokens:,} tokens{unpriced}."


RUNNING = [
    Column("ID", lambda run: run.id),
    Column("STATE", shown_state, is_state=True),
    Column("NAME", lambda run: run.name),
    Column(
        "WHAT",
        lambda run: run.description or None,
        shrink="truncate",
        drop=1,
        replaces="NAME",
    ),
    Column("PROJECT", lambda run: run.project, drop=4),
    Column("STARTED", lambda run: format_age(run.started_at) if run.started_at else "-", drop=3),
    Column("COST", lambda run: format_usd(run.cost_micros), drop=2),
]
WAITING = [
    Column("ID", lambda run: run.id),
    Column("STATE", shown_state, is_state=True),
    Column("NAME", lambda run: run.name),
    Column(
        "WHAT",
        lambda run: run.description or None,
        shrink="truncate",
        drop=1,
        replaces="NAME",
    ),
    Column("PROJECT", lambda run: run.project, drop=2),
    Column("SINCE", lambda run: format_age(run.attention_at) if run.attention_at else "-"),
]
SUBMITTED = [
    Column("ID", lambda task: task.id),
    Column("KEY", lambda task: task.key),
    Column("TITLE", lambda task: task.title, shrink="truncate"),
    Column("PROJECT", lambda task: task.project, drop=1),
    Column("SINCE", lambda task: format_age(task.submitted_at)),
]
UNDECIDED = [
    Column("ID", lambda race: race.id),
    Column("ROUND", lambda race: race.rounds),
    Column("STATE", lambda race: race.round_state, is_state=True),
    Column("PASSED", lambda race: f"{race.can_win} of {race.attempts}"),
    Column("RACE", lambda race: race.name),
]
FAILED = [
    Column("ID", lambda run: run.id),
    Column("STATE", shown_state, is_state=True),
    Column("NAME", lambda run: run.name),
    Column(
        "WHAT",
        lambda run: run.description or None,
        shrink="truncate",
        drop=1,
        replaces="NAME",
    ),
    Column("PROJECT", lambda run: run.project, drop=3),
    Column("ENDED", lambda run: format_age(run.ended_at)),
    Column("REASON", lambda run: run.reason, shrink="truncate", drop=2),
]
