"""`corral race`: run several attempts in parallel, compare them, and select a winner."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, USD, parse_pairs, read_body
from corral.cli.race_view import (
    COLUMNS,
    race_argument,
    race_or_latest_argument,
    resolve_race,
    show_race,
    variation_name,
    wait_options,
    wait_or_detach,
    wait_with_progress,
)
from corral.cli.render import write_line
from corral.cli.worktree_view import show_leftovers
from corral.kernel.errors import Conflict, Invalid

if TYPE_CHECKING:
    from corral.domain.races.model import WinRate

CHANGES = [
    Column("FILE", lambda change: change.name),
    Column("STATE", lambda change: change.state, is_state=True),
    Column("ADDED", lambda change: change.added),
    Column("REMOVED", lambda change: change.removed),
]
BRANCH = Column("BRANCH", lambda leftover: leftover.branch)


@click.group("race", cls=CommandGroup, help="Run several attempts in parallel and select a winner.")
def command() -> None:
    pass


# -- start and drive ---------------------------------------------------------------------------


def attempt_options(*, agents: str, budget: str) -> Callable[..., Any]:
    """Add the options that choose the agents, the variations and the budget of a round."""
    options = (
        click.option("--agents", metavar="A:N,B:N", help=agents),
        click.option(
            "--vary",
            metavar="FILE",
            help="File of prompt variations: one per line, or separated by ---.",
        ),
        click.option(
            "--variation",
            "given",
            multiple=True,
            metavar="TEXT",
            help="Prompt variation. Repeatable.",
        ),
        click.option(
            "--vary-auto",
            is_flag=True,
            help="Use the built-in variations: careful, minimal, test-first, bold.",
        ),
        click.option("--budget", "budget_micros", type=USD, help=budget),
    )

    def decorate(function: Any) -> Any:
        for add_option in options:
            function = add_option(function)
        return function

    return decorate


def _variations(file: str | None, texts: tuple[str, ...]) -> list[str]:
    from corral.domain.races.variations import parse_variations

    return [*(parse_variations(read_body(f"@{file}", False)) if file else []), *texts]


def _resolve_directory(project: str | None) -> str:
    """Return an absolute directory, or a project id or name; a daemon has another directory."""
    directory = "." if project is None else project
    return os.path.abspath(directory) if os.path.isdir(directory) else directory


@command.command(
    examples=[
        'corral race start "fix the test" --agents claude:2,codex:1 --check "make test" --wait',
        "corral race start @task.md --agents claude:4 --vary-auto --budget 5 --judge reviewer",
    ]
)
@click.argument("prompt")
@attempt_options(
    agents="Agents with the number of attempts of each (default: one attempt of the project's "
    "command, or of the first agent CLI on the PATH).",
    budget="Maximum cost of the race in US dollars (default: no limit).",
)
@click.option(
    "--check",
    "checks",
    multiple=True,
    metavar="CMD",
    help="Command that an attempt must pass. Repeatable; checks run in order.",
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="PATH",
    help="JUnit report that a check writes. Repeatable.",
)
@click.option(
    "--setup", metavar="CMD", help="Command to run in each worktree before its agent starts."
)
@click.option("--rounds", type=int, default=1, show_default=True, help="Number of planned rounds.")
@click.option(
    "--judge",
    metavar="AGENT",
    help="Agent that ranks the passing attempts without knowing their authors (default: none).",
)
@click.option(
    "--samples", type=int, default=2, show_default=True, help="Number of times to ask the judge."
)
@click.option("--rubric", metavar="TEXT|@FILE", help="Criteria for the judge.")
@click.option(
    "--auto",
    is_flag=True,
    help="Select the best attempt and continue with the better half of the agents.",
)
@click.option(
    "--stop-after",
    "stop_after",
    type=int,
    metavar="N",
    help="Cancel the remaining attempts when N have passed (default: let all attempts end).",
)
@click.option(
    "--project", metavar="ID|DIR", help="Project (default: that of the current directory)."
)
@click.option("--base", metavar="COMMIT", help="Base commit for all attempts (default: HEAD).")
@click.option(
    "--dirty",
    type=click.Choice(["refuse", "include", "ignore"]),
    default="refuse",
    show_default=True,
    help="How to treat uncommitted changes.",
)
@click.option("--name", help="Name of the race (default: from the prompt).")
@click.option(
    "--agent-timeout",
    "timeout_ms",
    type=DURATION,
    help="Timeout of an agent (default: its own limit, else no limit).",
)
@click.option(
    "--check-timeout",
    "check_timeout_ms",
    type=DURATION,
    help="Timeout of a check or of the set-up (default: races.check_timeout_ms, 10m).",
)
@click.option(
    "--env",
    multiple=True,
    metavar="K=V",
    help="Set an environment variable. The value is stored; use --secret for secrets. Repeatable.",
)
@click.option(
    "--secret",
    multiple=True,
    metavar="K=REF",
    help="Set an environment variable to a secret, by name or reference. Repeatable.",
)
@click.option(
    "--yes",
    "approvals",
    multiple=True,
    metavar="CLASS",
    help="Approve permission prompts of this class: edit, run, trust or all. Repeatable "
    "(default: edit).",
)
@click.option(
    "--sandbox",
    default="none",
    show_default=True,
    help="Sandbox for attempts: none, auto, bubblewrap or landlock.",
)
@click.option(
    "--unsandboxed-commands",
    "unsandboxed_commands",
    is_flag=True,
    help="Run set-up commands and checks outside the sandbox.",
)
@click.option(
    "--continue-session",
    "continue_session",
    is_flag=True,
    help="Continue the session of the winner in later rounds.",
)
@wait_options
@pass_app
def start(
    app: App,
    /,
    prompt: str,
    vary: str | None,
    given: tuple[str, ...],
    env: tuple[str, ...],
    secret: tuple[str, ...],
    approvals: tuple[str, ...],
    rubric: str | None,
    project: str | None,
    wait: bool,
    wait_ms: int | None,
    **options: Any,
) -> int:
    """Start a race: several agents work on PROMPT, each in its own git worktree.

    PROMPT `-` reads the prompt from standard input, `@FILE` from a file. Without --wait the race
    continues in the background.
    """
    race = app.store.races.start(
        read_body(prompt, False),
        variations=_variations(vary, given),
        env=parse_pairs(env, "--env"),
        secrets=parse_pairs(secret, "--secret"),
        approvals=approvals or ("edit",),
        rubric=read_body(rubric, False) if rubric else None,
        project=_resolve_directory(project),
        **options,
    )
    return _show_result(app, wait_or_detach(app, race, wait, wait_ms))


@command.command("next")
@race_argument
@click.argument("prompt", required=False)
@attempt_options(
    agents="Agents with the number of attempts of each (default: those of the previous round).",
    budget="New maximum cost of the race in US dollars (default: unchanged).",
)
@click.option(
    "--from",
    "from_round",
    type=int,
    metavar="N",
    help="Continue from the winner of round N (default: the latest round).",
)
@wait_options
@pass_app
def next_(
    app: App,
    /,
    race: str,
    prompt: str | None,
    vary: str | None,
    given: tuple[str, ...],
    wait: bool,
    wait_ms: int | None,
    **options: Any,
) -> int:
    """Start the next round from the winner; without PROMPT, use the previous prompt."""
    started = app.store.races.next(
        resolve_race(app, race),
        prompt=read_body(prompt, False) if prompt is not None else None,
        variations=_variations(vary, given),
        **options,
    )
    return _show_result(app, wait_or_detach(app, started, wait, wait_ms))


def _show_result(app: App, race: Any) -> int:
    """Show a race; the exit status is 1 if its latest round failed."""
    show_race(app, race)
    return 1 if race.latest.state == "failed" else 0


@command.command()
@race_or_latest_argument
@click.option(
    "--timeout", "wait_ms", type=DURATION, help="Maximum time to wait (default: no limit)."
)
@pass_app
def wait(app: App, race: str, wait_ms: int | None) -> int:
    """Drive a race until a winner can be selected or the race is over."""
    if os.environ.get("CORRAL_RUN") is None:
        from corral.adapters.processes import process_marks

        # The driver may have been started by a process of a run; it must outlive that run.
        process_marks.leave_run()
    return _show_result(app, wait_with_progress(app, resolve_race(app, race), wait_ms))


@command.command()
@race_argument
@pass_app
def advance(app: App, race: str) -> None:
    """Do the work of a race that is due now, without waiting."""
    show_race(app, app.store.races.advance(resolve_race(app, race)))


@command.command()
@race_argument
@click.argument("attempt")
@wait_options
@pass_app
def retry(app: App, race: str, attempt: str, wait: bool, wait_ms: int | None) -> None:
    """Retry an attempt that did not pass, in a new worktree."""
    retried = app.store.races.retry(resolve_race(app, race), attempt)
    show_race(app, wait_or_detach(app, retried, wait, wait_ms))


@command.command()
@race_argument
@click.argument("attempt")
@click.option("--reason", metavar="TEXT", help="Reason, for the event log.")
@pass_app
def cancel(app: App, race: str, attempt: str, reason: str | None) -> None:
    """Cancel an active attempt."""
    show_race(app, app.store.races.cancel(resolve_race(app, race), attempt, reason=reason))


# -- list and compare --------------------------------------------------------------------------


@command.command("list")
@click.option("--project", metavar="ID|DIR", help="Only list races of this project.")
@click.option("--state", help="Only list races in this state: active, completed or abandoned.")
@paging_options
@pass_app
def list_(app: App, /, project: str | None, **options: Any) -> None:
    """List races, newest first."""
    page = app.store.races.list(project=app.project_id(project), **options)
    app.show_page(page, COLUMNS, empty="No races. Start one with `corral race start`.")


@command.command()
@race_or_latest_argument
@pass_app
def show(app: App, race: str) -> None:
    """Show a race: its rounds, attempts, checks, verdicts and winners.

    RACE defaults to the latest race of the current directory's project.
    """
    show_race(app, app.store.races.get(resolve_race(app, race)))


@command.command()
@race_argument
@click.argument("one")
@click.argument("other", required=False)
@click.option(
    "--file", "files", multiple=True, metavar="PATH", help="Only show this file. Repeatable."
)
@click.option("--stat", is_flag=True, help="Only show the changed files and line counts.")
@pass_app
def diff(
    app: App, race: str, one: str, other: str | None, files: tuple[str, ...], stat: bool
) -> None:
    """Show what attempt ONE changed, or the difference between ONE and OTHER."""
    id = resolve_race(app, race)
    changes = app.store.races.changes(id, one, other)
    selected = [change for change in changes if not files or change.name in files]
    if stat:
        app.show_list(selected, CHANGES, empty="No differences.")
        return
    diffs = [app.store.races.diff(id, one, change.name, other=other) for change in selected]
    if app.json:
        app.show_list(diffs, CHANGES, empty="")
        return
    for file in diffs:
        write_line(f"{file.change.state} {file.change.name}")
        for hunk in file.hunks:
            write_line(hunk.header)
            for line in hunk.lines:
                write_line(f"{line.sign}{line.text}")
        if file.truncated:
            write_line("(truncated)")
    if not diffs:
        write_line("No differences.")


@command.command("stats")
@click.option(
    "--by",
    type=click.Choice(["agent", "model", "provider", "variation"]),
    default="agent",
    show_default=True,
    help="Group attempts by this field.",
)
@click.option(
    "--since",
    "since_ms",
    type=DURATION,
    help="Only count rounds decided within this time, such as 30d (default: all).",
)
@pass_app
def stats(app: App, by: str, since_ms: int | None) -> None:
    """Show win rates and cost per win, with 95% confidence intervals."""
    from corral.kernel.money import format_usd

    def group_name(row: "WinRate") -> str | None:
        return variation_name(row.key) if by == "variation" else row.key

    app.show_list(
        app.store.races.win_rates(by=by, since_ms=since_ms),
        [
            Column(by.upper(), group_name),
            Column("ATTEMPTS", lambda row: row.attempts),
            Column("PASSED", lambda row: row.passed),
            Column("WINS", lambda row: row.wins),
            Column("RATE", lambda row: f"{row.win_rate:.0%}"),
            Column("INTERVAL", lambda row: f"{row.low:.0%} to {row.high:.0%}"),
            Column("COST", lambda row: format_usd(row.cost_micros), drop=1),
            Column("PER WIN", lambda row: format_usd(row.micros_per_win)),
        ],
        empty="No round has been decided yet.",
    )


# -- select ------------------------------------------------------------------------------------


@command.command(
    examples=[
        "corral race select latest",
        'corral race select rac_3 2 --reason "smaller change"',
    ]
)
@race_argument
@click.argument("attempt", required=False)
@click.option("--reason", metavar="TEXT", help="Reason, for the event log.")
@click.option(
    "--overrule",
    is_flag=True,
    help="Select an attempt that failed its checks, or replace an earlier selection.",
)
@pass_app
def select(app: App, race: str, attempt: str | None, reason: str | None, overrule: bool) -> None:
    """Select the winner of a race: ATTEMPT, or without it the first in the ranking.

    ATTEMPT is a number (2), a round and number (1.2) or an id.
    """
    selected = app.store.races.select(
        resolve_race(app, race), attempt, reason=reason, overrule=overrule
    )
    show_race(app, selected)


@command.command()
@race_argument
@click.option(
    "--agent", "judge", metavar="NAME", help="Agent that judges (default: that of the race)."
)
@click.option("--samples", type=int, help="Number of times to ask the judge.")
@click.option("--rubric", metavar="TEXT", help="Criteria for the judge.")
@wait_options
@pass_app
def judge(app: App, /, race: str, wait: bool, wait_ms: int | None, **options: Any) -> None:
    """Ask a judge to rank the passing attempts. Authors are hidden and the order is shuffled."""
    judged = app.store.races.judge(resolve_race(app, race), **options)
    show_race(app, wait_or_detach(app, judged, wait, wait_ms))


@command.command()
@race_argument
@click.argument("attempt")
@click.option(
    "--file", "files", multiple=True, metavar="PATH", help="Whole file to copy. Repeatable."
)
@click.option(
    "--hunk",
    "hunks",
    multiple=True,
    metavar="PATH#N",
    help="Nth hunk of a file to apply. Repeatable.",
)
@pass_app
def graft(app: App, race: str, attempt: str, files: tuple[str, ...], hunks: tuple[str, ...]) -> int:
    """Apply files or hunks of ATTEMPT to the winner, and keep them if no check gets worse.

    Exits with 1 if the changes were not kept.
    """
    result = app.store.races.graft(
        resolve_race(app, race), attempt, files=files, hunks=_parse_hunks(hunks)
    )
    verb = "Kept" if result.kept else "Did not keep"
    app.report(f"{verb} the graft: {result.reason}.", result)
    return 0 if result.kept else 1


def _parse_hunks(values: tuple[str, ...]) -> dict[str, list[int]]:
    hunks: dict[str, list[int]] = {}
    for text in values:
        name, mark, number = text.rpartition("#")
        if not mark or not number.isdecimal():
            raise Invalid(f"Invalid hunk {text!r}: expected PATH#N, such as --hunk src/a.py#2.")
        hunks.setdefault(name, []).append(int(number))
    return hunks


# -- finish ------------------------------------------------------------------------------------


@command.command()
@race_argument
@click.option(
    "--into", metavar="BRANCH", help="Target branch (default: the branch the race started on)."
)
@click.option(
    "--round", type=int, metavar="N", help="Round whose winner to merge (default: the latest)."
)
@pass_app
def merge(app: App, race: str, into: str | None, round: int | None) -> None:
    """Merge the winner into a branch; refused if there are conflicts."""
    id = resolve_race(app, race)
    result = app.store.races.merge(id, into=into, round=round)
    if result.outcome == "conflicts":
        conflicts = ", ".join(f"{conflict.name} ({conflict.why})" for conflict in result.conflicts)
        raise Conflict(
            f"Cannot merge: conflicts in {conflicts}. Merge manually, or start another round.",
            conflicts=[
                {"name": conflict.name, "why": conflict.why} for conflict in result.conflicts
            ],
        )
    branch = into or app.store.races.get(id).branch
    if result.outcome == "already":
        app.report(f"{branch} already contains the winner.", result)
    else:
        app.report(f"Merged the winner into {branch} ({(result.commit or '')[:12]}).", result)


@command.command()
@race_argument
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--round", type=int, metavar="N", help="Only export round N (default: all rounds).")
@click.option("--replace", is_flag=True, help="Replace an earlier, unmodified export.")
@pass_app
def export(app: App, race: str, folder: str | None, round: int | None, replace: bool) -> None:
    """Export the winners (round-N-winner/), logs/ and a manifest to DIR.

    DIR defaults to race- and the end of the race's id.
    """
    id = app.local_store.races.get(resolve_race(app, race)).id
    target = folder or f"race-{id[-6:]}"
    manifest = app.local_store.races.export(id, target, round=round, replace=replace)
    app.report(f"Exported {len(manifest.entries)} files to {target}.", manifest)


@command.command()
@race_argument
@click.option("--reason", metavar="TEXT", help="Reason, for the event log.")
@pass_app
def finish(app: App, race: str, reason: str | None) -> None:
    """Mark a race as finished."""
    finished = app.store.races.finish(resolve_race(app, race), reason=reason)
    app.report(f"{finished.id} is {finished.state}.", finished)


@command.command()
@race_argument
@click.option("--round", type=int, metavar="N", help="Only abandon round N.")
@click.option("--reason", metavar="TEXT", help="Reason, for the event log.")
@pass_app
def abandon(app: App, race: str, round: int | None, reason: str | None) -> None:
    """Abandon a race; its branches and worktrees are kept."""
    abandoned = app.store.races.abandon(resolve_race(app, race), round=round, reason=reason)
    app.report(f"{abandoned.id} is {abandoned.state}.", abandoned)


@command.command()
@click.argument("race", required=False)
@click.option("--yes", "confirm", is_flag=True, help="Remove them; without this, only list them.")
@click.option(
    "--unmerged",
    is_flag=True,
    help="Include worktrees with commits that are on no other branch. Their branches are kept.",
)
@click.option("--orphans", is_flag=True, help="Include worktrees that belong to no attempt.")
@click.option("--pool", "pooled", is_flag=True, help="Include worktrees that are pooled for reuse.")
@pass_app
def clean(app: App, /, race: str | None, confirm: bool, **options: bool) -> None:
    """List the worktrees of ended attempts; with --yes, remove them.

    Worktrees that contain the only copy of some work are kept."""
    leftovers = app.store.races.clean(
        resolve_race(app, race) if race is not None else None,
        confirm=confirm,
        **options,
    )
    show_leftovers(app, leftovers, BRANCH, confirmed=confirm)
