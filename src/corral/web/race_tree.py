"""The rounds of a race as a tree: each stands to the right of the one whose winner it goes on from.

A round is a box with its attempts in it. What goes on from it first stands beside it; what went
back to it later stands below that.
"""

from collections.abc import Sequence
from typing import NamedTuple

from corral.domain.races.model import Attempt, Round
from corral.web.graph_layout import curve

WIDTH, HEAD, ROW, FOOT = 208, 30, 22, 8
"""Of a round, of its title, of an attempt in it, and what is left free below."""
ACROSS, BETWEEN = 64, 22
"""From round to round."""
ROUNDS, ROWS = 60, 10
"""So many rounds are drawn, and so many attempts of each."""


class Box(NamedTuple):
    """A round, and where it stands."""

    round: Round
    x: int
    y: int
    height: int
    rows: list[tuple[Attempt, int]]
    """Its attempts, each with how high the middle of its line is."""
    left_out: int
    """Attempts that are not drawn."""


class Lineage(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    paths: dict[str, str]
    """From a winner to the round that goes on from it, by that round's id: an SVG path."""
    left_out: int
    """Rounds that are not drawn: the oldest."""


def lineage(rounds: Sequence[Round]) -> Lineage:
    """Where the latest rounds of a race stand, and what leads to each."""
    shown = {each.id: each for each in rounds[-ROUNDS:]}
    behind: dict[str | None, list[Round]] = {}
    for each in shown.values():
        behind.setdefault(each.parent_id if each.parent_id in shown else None, []).append(each)
    drawing = _Drawing(behind)
    drawing.place(None, 0, 0)
    boxes = [drawing.boxes[id] for id in shown]
    return Lineage(
        width=max((box.x for box in boxes), default=0) + WIDTH,
        height=max((box.y + box.height for box in boxes), default=0),
        boxes=boxes,
        paths={
            box.round.id: _path(drawing.boxes[box.round.parent_id], box)
            for box in boxes
            if box.round.parent_id in drawing.boxes
        },
        left_out=len(rounds) - len(shown),
    )


class _Drawing:
    def __init__(self, behind: dict[str | None, list[Round]]) -> None:
        self._behind = behind
        self.boxes: dict[str | None, Box] = {}

    def place(self, parent: str | None, x: int, y: int) -> int:
        """Place all that goes on from a round, from a height on; gives back where that ends."""
        top, end = y, y
        for round in self._behind.get(parent, []):
            going_on = [each.base_attempt_id for each in self._behind.get(round.id, [])]
            box = _box(round, x, top, {round.winner_id, *going_on})
            self.boxes[round.id] = box
            end = max(top + box.height, self.place(round.id, x + WIDTH + ACROSS, top))
            top = end + BETWEEN
        return end


def _box(round: Round, x: int, y: int, needed: set[str | None]) -> Box:
    """A round with as many attempts as are drawn: those that others go on from come first."""
    order = sorted(
        round.attempts,
        key=lambda each: (each.id not in needed, each.rank or len(round.attempts) + each.number),
    )
    drawn = sorted(order[:ROWS], key=lambda each: each.number)
    rows = [(each, y + HEAD + ROW * n + ROW // 2) for n, each in enumerate(drawn)]
    left_out = len(order) - len(drawn)
    height = HEAD + ROW * (len(rows) + bool(left_out)) + FOOT
    return Box(round, x, y, height, rows, left_out)


def _path(before: Box, box: Box) -> str:
    """From the attempt that had won to the title of what goes on from it."""
    heights = {attempt.id: y for attempt, y in before.rows}
    y = heights.get(box.round.base_attempt_id or "", before.y + HEAD // 2)
    x = before.x + WIDTH
    return f"M{x} {y}" + curve(x, y, box.x, box.y + HEAD // 2)
