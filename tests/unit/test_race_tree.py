"""The tree of a race's rounds: each is right of its parent, without overlap."""

import random
from itertools import combinations

from corral.domain.races.model import Attempt, AttemptState, Round, RoundState
from corral.web.race_tree import BOX_WIDTH, MAX_ATTEMPTS, MAX_ROUNDS, build_race_tree


def make_attempt(round: int, number: int) -> Attempt:
    values = dict.fromkeys(Attempt.__struct_fields__)
    values |= {"id": f"att_{round}_{number}", "number": number, "state": AttemptState.COMPLETED}
    return Attempt(**values)


def make_round(number: int, parent: int | None, attempts: int = 3, winner: int = 1) -> Round:
    values = dict.fromkeys(Round.__struct_fields__)
    values |= {
        "id": f"rnd_{number}",
        "number": number,
        "state": RoundState.COMPLETED,
        "parent_id": None if parent is None else f"rnd_{parent}",
        "base_attempt_id": None if parent is None else f"att_{parent}_{winner}",
        "winner_id": f"att_{number}_{winner}",
        "attempts": [make_attempt(number, n) for n in range(1, attempts + 1)],
    }
    return Round(**values)


def test_empty_race_has_no_nodes() -> None:
    assert build_race_tree([]).boxes == []


def test_round_is_right_of_its_parent_without_overlap() -> None:
    rng = random.Random(3)
    rounds = [make_round(1, None)]
    for number in range(2, 40):
        rounds.append(make_round(number, rng.randrange(1, number), rng.randrange(1, 14)))
    result = build_race_tree(rounds)
    boxes = {box.round.id: box for box in result.boxes}
    assert [*boxes] == [item.id for item in rounds]
    for box in result.boxes[1:]:
        assert boxes[box.round.parent_id or ""].x < box.x
        assert result.paths[box.round.id].startswith(
            f"M{boxes[box.round.parent_id or ''].x + BOX_WIDTH}"
        )
    for first, second in combinations(result.boxes, 2):
        above, below = sorted((first, second), key=lambda box: box.y)
        assert first.x != second.x or above.y + above.height < below.y
    assert all(box.x + BOX_WIDTH <= result.width for box in result.boxes)
    assert all(box.y + box.height <= result.height for box in result.boxes)


def test_continuing_is_a_line_and_going_back_is_a_branch() -> None:
    first, second, branch = build_race_tree(
        [make_round(1, None), make_round(2, 1), make_round(3, 1, winner=2)]
    ).boxes
    assert first.y == second.y
    assert second.x == branch.x
    assert branch.y > second.y + second.height


def test_path_starts_at_the_winning_attempt() -> None:
    rounds = [make_round(1, None, winner=3), make_round(2, 1, winner=3)]
    result = build_race_tree(rounds)
    heights = {item.id: y for item, y in result.boxes[0].rows}
    assert result.paths["rnd_2"].startswith(f"M{BOX_WIDTH} {heights['att_1_3']}C")


def test_latest_rounds_and_their_ancestors_are_drawn() -> None:
    rounds = [
        make_round(n, n - 1 or None, attempts=40, winner=33) for n in range(1, MAX_ROUNDS + 6)
    ]
    result = build_race_tree(rounds)
    assert (len(result.boxes), result.omitted) == (MAX_ROUNDS, 5)
    assert result.boxes[0].round.number == 6
    box = result.boxes[0]
    assert (len(box.rows), box.omitted) == (MAX_ATTEMPTS, 30)
    assert "att_6_33" in [item.id for item, _ in box.rows]
    assert [item.number for item, _ in box.rows] == sorted(item.number for item, _ in box.rows)
