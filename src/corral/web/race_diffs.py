"""Diffs of an attempt against its base or another attempt, by file, side by side."""

from typing import NamedTuple

from starlette.responses import Response

from corral.adapters.git.git_history import DiffLine, FileChange, FileDiff, side_by_side
from corral.domain.races.model import Attempt, Race
from corral.kernel.errors import CorralError, NotFound
from corral.web.races import attempt_names, last_decided_round
from corral.web.request import PageRequest

MAX_FILES = 500
MAX_LINES = 3_000
"""Per file."""
MAX_LINE_LENGTH = 2_000
"""Longer lines are truncated."""


class DiffRow(NamedTuple):
    """A line before and after; None if it was added or removed."""

    old: DiffLine | None
    new: DiffLine | None


class DiffHunk(NamedTuple):
    """A hunk in two columns."""

    number: int
    header: str
    rows: list[DiffRow]


def show(request: PageRequest) -> Response:
    store = request.store
    race = store.races.get(request.path_param("id"))
    names = attempt_names(race)
    choices = [
        attempt for round in race.rounds for attempt in round.attempts if attempt.commit is not None
    ]
    one, other = _select_attempt(race, choices, request.query("one")), request.query("other")
    against = None if other in (None, "base") else _select_attempt(race, choices, other)
    changes: list[FileChange] = []
    diff: FileDiff | None = None
    problem = None
    if one is not None:
        try:
            changes = [*store.races.changes(race.id, one.id, against.id if against else None)]
            # Not stripped: a file name may begin or end with a space.
            file = request.http.query_params.get("file") or next(
                (change.name for change in changes), None
            )
            if file is not None:
                diff = store.races.diff(
                    race.id, one.id, file, other=against.id if against else None
                )
        except CorralError as error:
            problem = error.message  # shown on the page, which keeps the selection
    hunks, is_truncated = _hunks(diff)
    return request.render(
        "race_diff.html",
        race=race,
        one=one,
        against=against,
        choices=choices,
        attempt_names=names,
        changes=changes[:MAX_FILES],
        omitted=max(len(changes) - MAX_FILES, 0),
        added=sum(change.added or 0 for change in changes),
        removed=sum(change.removed or 0 for change in changes),
        diff=diff,
        hunks=hunks,
        is_truncated=is_truncated,
        max_line_length=MAX_LINE_LENGTH,
        problem=problem,
        grafted=_grafted(race, one, against),
    )


def _select_attempt(race: Race, choices: list[Attempt], name: str | None) -> Attempt | None:
    """Return an attempt by id or ROUND.NUMBER, by default the first with a commit."""
    if name is None:
        return choices[0] if choices else None
    names = attempt_names(race)
    for attempt in choices:
        if name in (attempt.id, names[attempt.id]):
            return attempt
    raise NotFound(
        f"{race.id} has no attempt {name[:60]!r} with a commit. Choose one of "
        f"{', '.join(names[attempt.id] for attempt in choices) or 'none yet'}."
    )


def _grafted(race: Race, one: Attempt | None, against: Attempt | None) -> Attempt | None:
    """Return the attempt whose files can be grafted: the other one, if one is the winner."""
    decided = last_decided_round(race)
    if decided is None or one is None or against is None:
        return None
    if one.id == decided.winner_id != against.id:
        return against
    return None


def _hunks(diff: FileDiff | None) -> tuple[list[DiffHunk], bool]:
    """Return the hunks of a file in two columns, and whether they are truncated."""
    hunks: list[DiffHunk] = []
    available = MAX_LINES
    for hunk in diff.hunks if diff else []:
        if available <= 0:
            return hunks, True
        rows = [DiffRow(*pair) for pair in side_by_side(hunk)]
        hunks.append(DiffHunk(hunk.number, hunk.header, rows[:available]))
        if len(rows) > available:
            return hunks, True
        available -= len(rows)
    return hunks, diff is not None and diff.truncated
