"""Graph layout: every node is right of its dependencies, without overlap."""

import random
import time
from itertools import combinations

from corral.kernel.clock import HOUR, MINUTE
from corral.web.graph_layout import NODE_HEIGHT, NODE_WIDTH, layout_graph
from corral.web.task_timeline import _ticks


def test_empty_graph_has_no_nodes() -> None:
    assert layout_graph({}).positions == {}


def test_dependencies_are_on_the_left_without_overlap() -> None:
    rng = random.Random(5)
    needs: dict[str, list[str]] = {}
    for n in range(60):
        needs[f"t{n}"] = rng.sample([*needs], min(n, rng.randrange(4)))
    result = layout_graph(needs)
    assert [*result.positions] == [*needs]
    for key, needed in needs.items():
        for need in needed:
            assert result.positions[need].x + NODE_WIDTH < result.positions[key].x
            assert result.paths[key, need].startswith("M")
    for first, second in combinations(result.positions.values(), 2):
        assert abs(first.x - second.x) >= NODE_WIDTH or abs(first.y - second.y) >= NODE_HEIGHT
    assert all(position.x + NODE_WIDTH <= result.width for position in result.positions.values())
    assert all(
        0 <= position.y <= result.height - NODE_HEIGHT for position in result.positions.values()
    )


def test_edges_to_unknown_nodes_are_ignored() -> None:
    assert layout_graph({"a": ["elsewhere"], "b": ["a"]}).paths.keys() == {("b", "a")}


def test_diamond_has_few_crossings() -> None:
    result = layout_graph({"a": [], "x": ["a"], "y": ["a"], "x2": ["x"], "y2": ["y"]})
    x_above = result.positions["x"].y < result.positions["y"].y
    assert (result.positions["x2"].y < result.positions["y2"].y) is x_above


def test_dense_chain_stays_small_and_fast() -> None:
    needs = {f"t{n}": [f"t{m}" for m in range(n)] for n in range(150)}
    start = time.process_time()
    result = layout_graph(needs)
    assert time.process_time() - start < 5
    assert len(result.paths) == 150 * 149 // 2


def test_axis_has_a_few_round_times() -> None:
    for span in (1, 90 * MINUTE, 30 * HOUR, 5_000 * HOUR):
        ticks = _ticks(1_000_000_007, 1_000_000_007 + span)
        assert len(ticks) <= 9
        assert all(0 <= x <= 100 for x, _ in ticks)
