"""Commands that compare attempts, choose one, and see to what becomes of it."""

from typing import Any

import click

from corral.cli.app import App, Verb, pass_app
from corral.cli.race_view import id_of, on_race, show, stay_or_leave, waiting
from corral.cli.render import write_line
from corral.cli.worktree_view import show_leftovers
from corral.kernel.errors import Conflict

CHANGES = [
    ("FILE", lambda change: change.name),
    ("STATE", lambda change: change.state),
    ("ADDED", lambda change: change.added),
    ("REMOVED", lambda change: change.removed),
]
BRANCH = ("BRANCH", lambda left: left.branch)


@click.command("diff", cls=Verb)
@on_race
@click.argument("one")
@click.argument("other", required=False)
@click.option("--file", "files", multiple=True, metavar="PATH", help="Only this file.")
@click.option("--stat", is_flag=True, help="Only which files, and how many lines.")
@pass_app
def diff(
    app: App, race: str, one: str, other: str | None, files: tuple[str, ...], stat: bool
) -> None:
    """What attempt ONE changed, or how ONE and OTHER differ."""
    id = id_of(app, race)
    changed = app.store.races.changes(id, one, other)
    wanted = [change for change in changed if not files or change.name in files]
    if stat:
        app.show_all(wanted, CHANGES, empty="Nothing differs.")
        return
    found = [app.store.races.diff(id, one, each.name, other=other) for each in wanted]
    if app.json:
        app.show_all(found, CHANGES, empty="")
        return
    for each in found:
        write_line(f"{each.change.state} {each.change.name}")
        for hunk in each.hunks:
            write_line(hunk.header)
            for line in hunk.lines:
                write_line(f"{line.sign}{line.text}")
        if each.truncated:
            write_line("(there is more of this)")
    if not found:
        write_line("Nothing differs.")


@click.command("select", cls=Verb)
@on_race
@click.argument("attempt", required=False)
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@click.option("--overrule", is_flag=True, help="Against the checks, or an earlier choice.")
@pass_app
def select(app: App, race: str, attempt: str | None, reason: str | None, overrule: bool) -> None:
    """Choose the winner: ATTEMPT (2, ROUND.NUMBER or an id), else the one that ranks first."""
    chosen = app.store.races.select(id_of(app, race), attempt, reason=reason, overrule=overrule)
    show(app, chosen)


@click.command("judge", cls=Verb)
@on_race
@click.option("--agent", "judge", metavar="NAME", help="Who judges; the race's own by default.")
@click.option("--samples", type=int, help="How often it is asked.")
@click.option("--rubric", metavar="TEXT", help="What it looks at.")
@waiting
@pass_app
def judge(app: App, /, race: str, wait: bool, wait_ms: int | None, **options: Any) -> None:
    """Have what passed ranked by a judge, blind and in shuffled orders."""
    begun = app.store.races.judge(id_of(app, race), **options)
    show(app, stay_or_leave(app, begun, wait, wait_ms))


@click.command("retry", cls=Verb)
@on_race
@click.argument("attempt")
@waiting
@pass_app
def retry(app: App, race: str, attempt: str, wait: bool, wait_ms: int | None) -> None:
    """Try an attempt again that did not pass, in a new worktree."""
    again = app.store.races.retry(id_of(app, race), attempt)
    show(app, stay_or_leave(app, again, wait, wait_ms))


@click.command("cancel", cls=Verb)
@on_race
@click.argument("attempt")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@pass_app
def cancel(app: App, race: str, attempt: str, reason: str | None) -> None:
    """End an attempt that is under way."""
    show(app, app.store.races.cancel(id_of(app, race), attempt, reason=reason))


@click.command("abandon", cls=Verb)
@on_race
@click.option("--round", type=int, metavar="N", help="Only that round.")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@pass_app
def abandon(app: App, race: str, round: int | None, reason: str | None) -> None:
    """Give up a race; what was made stays."""
    given_up = app.store.races.abandon(id_of(app, race), round=round, reason=reason)
    app.say(f"{given_up.id} is {given_up.state}.", given_up)


@click.command("finish", cls=Verb)
@on_race
@click.option("--reason", metavar="TEXT", help="For the record.")
@pass_app
def finish(app: App, race: str, reason: str | None) -> None:
    """Say that a race is over."""
    done = app.store.races.finish(id_of(app, race), reason=reason)
    app.say(f"{done.id} is {done.state}.", done)


@click.command("export", cls=Verb)
@on_race
@click.argument("folder", required=False)
@click.option("--round", type=int, metavar="N", help="Only that round; all by default.")
@click.option("--replace", is_flag=True, help="In the place of an export that nobody changed.")
@pass_app
def export(app: App, race: str, folder: str | None, round: int | None, replace: bool) -> None:
    """Write round-N-winner/, logs/ and a manifest into FOLDER (race-… by default)."""
    found = app.store_here.races.get(id_of(app, race))
    target = folder or f"race-{found.id[-6:]}"
    written = app.store_here.races.export(found.id, target, round=round, replace=replace)
    app.say(f"{len(written.entries)} files are in {target}.", written)


@click.command("merge", cls=Verb)
@on_race
@click.option("--into", metavar="BRANCH", help="That of the race's start by default.")
@click.option("--round", type=int, metavar="N", help="That round's winner; the last by default.")
@pass_app
def merge(app: App, race: str, into: str | None, round: int | None) -> None:
    """Merge the winner into a branch; with conflicts nothing is done."""
    id = id_of(app, race)
    done = app.store.races.merge(id, into=into, round=round)
    if done.outcome == "conflicts":
        clashes = ", ".join(f"{clash.name} ({clash.why})" for clash in done.conflicts)
        raise Conflict(
            f"It was not merged: {clashes}. Merge by hand, or go on from the new base.",
            conflicts=[{"name": clash.name, "why": clash.why} for clash in done.conflicts],
        )
    commit = (done.commit or "")[:12]
    what = "has it already" if done.outcome == "already" else f"is at {commit} now"
    app.say(f"The branch {into or app.store.races.get(id).branch} {what}.", done)


@click.command("graft", cls=Verb)
@on_race
@click.argument("attempt")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A whole file of it.")
@click.option("--hunk", "hunks", multiple=True, metavar="PATH#N", help="The Nth change in a file.")
@pass_app
def graft(app: App, race: str, attempt: str, files: tuple[str, ...], hunks: tuple[str, ...]) -> int:
    """Put files or hunks of ATTEMPT onto the winner, if its checks do not get worse."""
    tried = app.store.races.graft(id_of(app, race), attempt, files=files, hunks=_hunks(hunks))
    what = "kept" if tried.kept else "not kept"
    app.say(f"It was {what}: {tried.reason}.", tried)
    return 0 if tried.kept else 1


def _hunks(given: tuple[str, ...]) -> dict[str, list[int]]:
    from corral.kernel.errors import Invalid

    found: dict[str, list[int]] = {}
    for text in given:
        name, mark, number = text.rpartition("#")
        if not mark or not number.isdecimal():
            raise Invalid(f"{text!r} names no hunk; write --hunk PATH#2.")
        found.setdefault(name, []).append(int(number))
    return found


@click.command("clean", cls=Verb)
@click.argument("race", required=False)
@click.option("--yes", "confirm", is_flag=True, help="Do it; without this it is only shown.")
@click.option("--unmerged", is_flag=True, help="Also what no other branch has; its branch stays.")
@click.option("--orphans", is_flag=True, help="Also worktrees in which no attempt works.")
@click.option("--pool", "pooled", is_flag=True, help="Also what is kept for the next attempts.")
@pass_app
def clean(app: App, /, race: str | None, confirm: bool, **options: bool) -> None:
    """Clear worktrees away that hold nothing of their own; others are listed, with the reason."""
    found = app.store.races.clean(
        id_of(app, race) if race is not None else None,
        confirm=confirm,
        **options,
    )
    show_leftovers(app, found, BRANCH, confirmed=confirm)


CHOOSING = (
    diff,
    select,
    judge,
    retry,
    cancel,
    abandon,
    finish,
    export,
    merge,
    graft,
    clean,
)
