"""How two attempts differ, or an attempt and what it began with: by file, side by side."""

from typing import NamedTuple

from starlette.responses import Response

from corral.adapters.history import Change, FileDiff, Line, side_by_side
from corral.domain.races.model import Attempt, Race
from corral.kernel.errors import CorralError, NotFound
from corral.web.races import called, last_decided
from corral.web.request import Visit

FILES = 500
LINES = 3_000
"""So many files are listed, and so many lines of one are shown."""
LONGEST = 2_000
"""Of a line; a file of one endless line is no page."""


class Row(NamedTuple):
    """A line before and after; None where there is none."""

    old: Line | None
    new: Line | None


class Part(NamedTuple):
    """A hunk in two columns."""

    number: int
    header: str
    rows: list[Row]


def show(visit: Visit) -> Response:
    store = visit.store
    race = store.races.get(visit.path("id"))
    names = called(race)
    choices = [each for round in race.rounds for each in round.attempts if each.commit is not None]
    one, other = _asked(race, choices, visit.asked("one")), visit.asked("other")
    against = None if other in (None, "base") else _asked(race, choices, other)
    changes: list[Change] = []
    diff: FileDiff | None = None
    problem = None
    if one is not None:
        try:
            changes = [*store.races.changes(race.id, one.id, against.id if against else None)]
            # A name as it is: it may begin or end with a space.
            file = visit.request.query_params.get("file") or next(
                (change.name for change in changes), None
            )
            if file is not None:
                diff = store.races.diff(
                    race.id, one.id, file, other=against.id if against else None
                )
        except CorralError as error:
            problem = error.message  # the attempts stay in their fields
    parts, cut = _parts(diff)
    return visit.show(
        "race_diff.html",
        race=race,
        one=one,
        against=against,
        choices=choices,
        called=names,
        changes=changes[:FILES],
        more=max(len(changes) - FILES, 0),
        added=sum(change.added or 0 for change in changes),
        removed=sum(change.removed or 0 for change in changes),
        diff=diff,
        parts=parts,
        cut=cut,
        longest=LONGEST,
        problem=problem,
        grafted=_grafted(race, one, against),
    )


def _asked(race: Race, choices: list[Attempt], name: str | None) -> Attempt | None:
    """An attempt by what stands in an address; without that the first that can be shown."""
    if name is None:
        return choices[0] if choices else None
    names = called(race)
    for each in choices:
        if name in (each.id, names[each.id]):
            return each
    raise NotFound(
        f"{race.id} has no attempt {name[:60]!r} that has left something; choose one of "
        f"{', '.join(names[each.id] for each in choices) or 'none yet'}."
    )


def _grafted(race: Race, one: Attempt | None, against: Attempt | None) -> Attempt | None:
    """Whose files could be put onto the winner: the other one's, when one of both is that."""
    decided = last_decided(race)
    if decided is None or one is None or against is None:
        return None
    if one.id == decided.winner_id != against.id:
        return against
    return None


def _parts(diff: FileDiff | None) -> tuple[list[Part], bool]:
    """The hunks of a file in two columns, as far as they are shown, and whether that is not all."""
    parts: list[Part] = []
    left = LINES
    for hunk in diff.hunks if diff else []:
        if left <= 0:
            return parts, True
        rows = [Row(*pair) for pair in side_by_side(hunk)]
        parts.append(Part(hunk.number, hunk.header, rows[:left]))
        if len(rows) > left:
            return parts, True
        left -= len(rows)
    return parts, diff is not None and diff.truncated
