"""Laying out a graph: everything to the right of what it needs, nothing on top of another."""

import random
import time
from itertools import combinations

from corral.kernel.clock import HOUR, MINUTE
from corral.web.graph_layout import HEIGHT, WIDTH, lay_out
from corral.web.task_lanes import _ticks


def test_nothing_is_nothing() -> None:
    assert lay_out({}).places == {}


def test_what_is_needed_stands_to_the_left_and_nothing_overlaps() -> None:
    chance = random.Random(5)
    needs: dict[str, list[str]] = {}
    for n in range(60):
        needs[f"t{n}"] = chance.sample([*needs], min(n, chance.randrange(4)))
    found = lay_out(needs)
    assert [*found.places] == [*needs]
    for key, needed in needs.items():
        for need in needed:
            assert found.places[need].x + WIDTH < found.places[key].x
            assert found.paths[key, need].startswith("M")
    for one, other in combinations(found.places.values(), 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT
    assert all(place.x + WIDTH <= found.width for place in found.places.values())
    assert all(0 <= place.y <= found.height - HEIGHT for place in found.places.values())


def test_what_is_outside_is_passed_over() -> None:
    assert lay_out({"a": ["elsewhere"], "b": ["a"]}).paths.keys() == {("b", "a")}


def test_a_diamond_has_few_crossings() -> None:
    found = lay_out({"a": [], "x": ["a"], "y": ["a"], "x2": ["x"], "y2": ["y"]})
    x_above = found.places["x"].y < found.places["y"].y
    assert (found.places["x2"].y < found.places["y2"].y) is x_above


def test_a_chain_in_which_everything_needs_everything_stays_small_and_quick() -> None:
    needs = {f"t{n}": [f"t{m}" for m in range(n)] for n in range(150)}
    began = time.process_time()
    found = lay_out(needs)
    assert time.process_time() - began < 5
    assert len(found.paths) == 150 * 149 // 2


def test_an_axis_has_a_few_round_moments() -> None:
    for span in (1, 90 * MINUTE, 30 * HOUR, 5_000 * HOUR):
        ticks = _ticks(1_000_000_007, 1_000_000_007 + span)
        assert len(ticks) <= 9
        assert all(0 <= x <= 100 for x, _ in ticks)
