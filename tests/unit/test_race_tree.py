"""The tree of a race's rounds: each is right of its parent, without overlap."""

import random
from itertools import combinations

from corral.domain.races.model import Attempt, AttemptState, Round, RoundState
from corral.web.race_tree import BOX_WIDTH, MAX_ATTEMPTS, MAX_ROUNDS, build_race_tree


def attempt(round: int, number: int) -> Attempt:
    known = dict.fromkeys(Attempt.__struct_fields__)
    known |= {"id": f"att_{round}_{number}", "number": number, "state": AttemptState.COMPLETED}
    return Attempt(**known)


def round_of(number: int, parent: int | None, attempts: int = 3, winner: int = 1) -> Round:
    known = dict.fromkeys(Round.__struct_fields__)
    known |= {
        "id": f"rnd_{number}",
        "number": number,
        "state": RoundState.COMPLETED,
        "parent_id": None if parent is None else f"rnd_{parent}",
        "base_attempt_id": None if parent is None else f"att_{parent}_{winner}",
        "winner_id": f"att_{number}_{winner}",
        "attempts": [attempt(number, n) for n in range(1, attempts + 1)],
    }
    return Round(**known)


def test_empty_race_has_no_nodes() -> None:
    assert build_race_tree([]).boxes == []


def test_round_is_right_of_its_parent_without_overlap() -> None:
    chance = random.Random(3)
    rounds = [round_of(1, None)]
    for number in range(2, 40):
        rounds.append(round_of(number, chance.randrange(1, number), chance.randrange(1, 14)))
    result = build_race_tree(rounds)
    boxes = {box.round.id: box for box in result.boxes}
    assert [*boxes] == [item.id for item in rounds]
    for box in result.boxes[1:]:
        assert boxes[box.round.parent_id or ""].x < box.x
        assert result.paths[box.round.id].startswith(
            f"M{boxes[box.round.parent_id or ''].x + BOX_WIDTH}"
        )
    for one, other in combinations(result.boxes, 2):
        above, below = sorted((one, other), key=lambda box: box.y)
        assert one.x != other.x or above.y + above.height < below.y
    assert all(box.x + BOX_WIDTH <= result.width for box in result.boxes)
    assert all(box.y + box.height <= result.height for box in result.boxes)


def test_continuing_is_a_line_and_going_back_is_a_branch() -> None:
    one, two, back = build_race_tree(
        [round_of(1, None), round_of(2, 1), round_of(3, 1, winner=2)]
    ).boxes
    assert one.y == two.y
    assert two.x == back.x
    assert back.y > two.y + two.height


def test_path_starts_at_the_winning_attempt() -> None:
    rounds = [round_of(1, None, winner=3), round_of(2, 1, winner=3)]
    result = build_race_tree(rounds)
    heights = {item.id: y for item, y in result.boxes[0].rows}
    assert result.paths["rnd_2"].startswith(f"M{BOX_WIDTH} {heights['att_1_3']}C")


def test_latest_rounds_and_their_ancestors_are_drawn() -> None:
    rounds = [round_of(n, n - 1 or None, attempts=40, winner=33) for n in range(1, MAX_ROUNDS + 6)]
    result = build_race_tree(rounds)
    assert (len(result.boxes), result.omitted) == (MAX_ROUNDS, 5)
    assert result.boxes[0].round.number == 6
    box = result.boxes[0]
    assert (len(box.rows), box.omitted) == (MAX_ATTEMPTS, 30)
    assert "att_6_33" in [item.id for item, _ in box.rows]
    assert [item.number for item, _ in box.rows] == sorted(item.number for item, _ in box.rows)
