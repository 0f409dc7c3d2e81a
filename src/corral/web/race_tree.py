"""Layout of the rounds of a race as a tree, from left to right.

A round is a box with its attempts. The first round that continues from a winner stands beside its
parent; later branches stand below.
"""

from collections.abc import Sequence
from typing import NamedTuple

from corral.domain.races.model import Attempt, Round
from corral.web.graph_layout import svg_curve

BOX_WIDTH, TITLE_HEIGHT, ROW_HEIGHT, PADDING = 208, 30, 22, 8
COLUMN_GAP, BOX_GAP = 64, 22
MAX_ROUNDS, MAX_ATTEMPTS = 60, 10
"""How many rounds are drawn, and how many attempts of each."""


class RoundBox(NamedTuple):
    """A round and its position."""

    round: Round
    x: int
    y: int
    height: int
    rows: list[tuple[Attempt, int]]
    """The attempts, each with the vertical centre of its row."""
    omitted: int
    """Number of attempts that are not drawn."""


class RaceTree(NamedTuple):
    width: int
    height: int
    boxes: list[RoundBox]
    paths: dict[str, str]
    """By round id: the SVG path from the winner that the round continues from."""
    omitted: int
    """Number of rounds that are not drawn: the oldest."""


def build_race_tree(rounds: Sequence[Round]) -> RaceTree:
    """Lay out the latest rounds of a race."""
    shown = {round.id: round for round in rounds[-MAX_ROUNDS:]}
    children: dict[str | None, list[Round]] = {}
    for round in shown.values():
        children.setdefault(round.parent_id if round.parent_id in shown else None, []).append(round)
    layout = _TreeLayout(children)
    layout.place_children(None, 0, 0)
    boxes = [layout.boxes[id] for id in shown]
    return RaceTree(
        width=max((box.x for box in boxes), default=0) + BOX_WIDTH,
        height=max((box.y + box.height for box in boxes), default=0),
        boxes=boxes,
        paths={
            box.round.id: _svg_path(layout.boxes[box.round.parent_id], box)
            for box in boxes
            if box.round.parent_id in layout.boxes
        },
        omitted=len(rounds) - len(shown),
    )


class _TreeLayout:
    def __init__(self, children: dict[str | None, list[Round]]) -> None:
        self._children = children
        self.boxes: dict[str | None, RoundBox] = {}

    def place_children(self, parent: str | None, x: int, y: int) -> int:
        """Place the subtrees of a round below each other, starting at `y`; return their end."""
        top, end = y, y
        for round in self._children.get(parent, []):
            bases = [child.base_attempt_id for child in self._children.get(round.id, [])]
            box = _make_box(round, x, top, {round.winner_id, *bases})
            self.boxes[round.id] = box
            subtree_end = self.place_children(round.id, x + BOX_WIDTH + COLUMN_GAP, top)
            end = max(top + box.height, subtree_end)
            top = end + BOX_GAP
        return end


def _make_box(round: Round, x: int, y: int, required: set[str | None]) -> RoundBox:
    """Make the box of a round. Attempts that edges start from are always drawn."""
    by_importance = sorted(
        round.attempts,
        key=lambda attempt: (
            attempt.id not in required,
            attempt.rank or len(round.attempts) + attempt.number,
        ),
    )
    shown = sorted(by_importance[:MAX_ATTEMPTS], key=lambda attempt: attempt.number)
    rows = [
        (attempt, y + TITLE_HEIGHT + ROW_HEIGHT * n + ROW_HEIGHT // 2)
        for n, attempt in enumerate(shown)
    ]
    omitted = len(by_importance) - len(shown)
    height = TITLE_HEIGHT + ROW_HEIGHT * (len(rows) + bool(omitted)) + PADDING
    return RoundBox(round, x, y, height, rows, omitted)


def _svg_path(parent: RoundBox, box: RoundBox) -> str:
    """Draw the edge from the winning attempt to the title of the round that continues from it."""
    row_centres = {attempt.id: y for attempt, y in parent.rows}
    y = row_centres.get(box.round.base_attempt_id or "", parent.y + TITLE_HEIGHT // 2)
    x = parent.x + BOX_WIDTH
    return f"M{x} {y}" + svg_curve(x, y, box.x, box.y + TITLE_HEIGHT // 2)
