"""The langgraph checkpointer: langgraph's conformance suite, and interrupted graphs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from corral.api import Corral
from corral.integrations.langgraph import CorralSaver
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid
from tests.support.errors import because
from tests.support.http_server import run_http_server
from tests.support.store import rows

THREAD_CONFIG = {"configurable": {"thread_id": "trip"}}


class SyncSaver(BaseCheckpointSaver[int]):
    """Exposes the sync methods under the async names, so that the suite tests them, too."""

    def __init__(self, saver: CorralSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def alist(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        for item in self._saver.list(*args, **named):
            yield item


def wrap_sync_method(name: str) -> Callable[..., Any]:
    async def call(self: SyncSaver, *args: Any, **named: Any) -> Any:
        return getattr(self._saver, name)(*args, **named)

    return call


for _name in ("get_tuple", "put", "put_writes", "delete_thread", "delete_for_runs", "copy_thread",
              "prune"):  # fmt: skip
    setattr(SyncSaver, f"a{_name}", wrap_sync_method(_name))


@pytest.mark.parametrize("wrap", [lambda saver: saver, SyncSaver], ids=["async", "sync"])
def test_conformance_suite_passes(
    store: Corral, wrap: Callable[[CorralSaver], BaseCheckpointSaver[int]]
) -> None:
    async def make_savers() -> AsyncIterator[BaseCheckpointSaver[int]]:
        yield wrap(CorralSaver(store))

    report = asyncio.run(validate(checkpointer_test(name="CorralSaver")(make_savers)))
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert {name for name, result in report.results.items() if result.passed} == set(Capability)
    assert sum(result.tests_passed for result in report.results.values()) >= 75


class Trip(TypedDict):
    places: Annotated[list[str], add]


def make_graph(saver: BaseCheckpointSaver[Any], seen: list[str]) -> Any:
    """Return a graph that visits two places in parallel, asks a person, and continues."""

    def make_node(place: str) -> Callable[[Trip], Trip]:
        def node(_: Trip) -> Trip:
            seen.append(place)
            return {"places": [place]}

        return node

    def ask(_: Trip) -> Trip:
        return {"places": [interrupt("where to?")]}

    builder = StateGraph(Trip)
    for name, node in {"rome": make_node("rome"), "oslo": make_node("oslo"), "ask": ask}.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def test_interrupted_graph_continues_in_another_process(
    store: Corral, url: str, clock: ManualClock
) -> None:
    seen: list[str] = []
    make_graph(CorralSaver(store), seen).invoke({"places": ["home"]}, THREAD_CONFIG)
    assert sorted(seen) == ["oslo", "rome"]
    with CorralSaver(url) as another:
        result = make_graph(another, seen).invoke(Command(resume="paris"), THREAD_CONFIG)
    assert sorted(result["places"]) == ["home", "oslo", "paris", "rome"]
    assert sorted(seen) == ["oslo", "rome"], "finished steps are not repeated"


def run_graph_history(saver: BaseCheckpointSaver[Any]) -> list[Any]:
    """Return the states of a graph that is interrupted, resumed, rewound, changed and forked."""
    graph = make_graph(saver, [])
    results = [
        graph.invoke({"places": ["home"]}, THREAD_CONFIG),
        graph.invoke(Command(resume="a"), THREAD_CONFIG),
    ]
    (interrupted,) = [
        state
        for state in graph.get_state_history(THREAD_CONFIG)
        if state.next and state.values.get("places")
    ]
    results.append(graph.invoke(None, interrupted.config))
    changed_config = graph.update_state(interrupted.config, {"places": ["lima"]}, as_node="rome")
    results += [graph.invoke(None, changed_config), graph.get_state(THREAD_CONFIG).values]
    history = list(graph.get_state_history(THREAD_CONFIG))
    results += [
        (state.values, state.next, state.metadata["source"], state.metadata["step"])
        for state in history
    ]
    return [repr(item).partition("Interrupt(")[0] for item in results]


def test_graph_is_rewound_and_forked_like_with_langgraphs_saver(store: Corral) -> None:
    assert run_graph_history(CorralSaver(store)) == run_graph_history(InMemorySaver())


def test_graphs_run_concurrently_in_one_event_loop(store: Corral) -> None:
    graph = make_graph(CorralSaver(store), [])

    async def run_graph(name: str) -> int:
        config = {"configurable": {"thread_id": name}}
        await graph.ainvoke({"places": [name]}, config)
        return len((await graph.ainvoke(Command(resume="x"), config))["places"])

    async def run_graphs() -> list[int]:
        return await asyncio.gather(*(run_graph(f"t{n}") for n in range(8)))

    assert asyncio.run(run_graphs()) == [4] * 8


def test_unused_threads_are_deleted_as_a_whole(store: Corral, clock: ManualClock) -> None:
    saver = CorralSaver(store)
    for thread in ("old", "young"):
        config = saver.put(
            {"configurable": {"thread_id": thread}}, empty_checkpoint(), {"step": 0}, {}
        )
        saver.put_writes(config, [("channel", 1)], "task")
    clock.advance(90 * DAY + 1)
    saver.put(config, empty_checkpoint(), {"step": 1}, {})
    planned = {item.table: item.rows for item in store.db.prune(dry_run=True)}
    deleted = {item.table: item.rows for item in store.db.prune()}
    assert planned == deleted
    assert (deleted["checkpoints"], deleted["checkpoint_writes"]) == (1, 1)
    assert [
        len(list(saver.list({"configurable": {"thread_id": t}}))) for t in ("old", "young")
    ] == [
        0,
        2,
    ]


def test_pruning_keeps_the_ancestors_of_a_delta_state(store: Corral) -> None:
    saver = CorralSaver(store)
    config: Any = THREAD_CONFIG
    for step in range(6):
        checkpoint = empty_checkpoint()
        if step == 2:
            checkpoint["channel_values"] = {"log": "whole"}
        changes = {"log": (step - 2, step - 2)}
        config = saver.put(
            config, checkpoint, {"step": step, "counters_since_delta_snapshot": changes}, {}
        )
        saver.put_writes(config, [("log", step)], "task")
    saver.prune(["trip"])
    assert [item.metadata["step"] for item in saver.list(THREAD_CONFIG)] == [5, 4, 3, 2]
    history = saver.get_delta_channel_history(config=config, channels=["log"])["log"]
    assert (history["seed"], [value for _, _, value in history["writes"]]) == ("whole", [2, 3, 4])


def test_config_without_a_thread_is_rejected(store: Corral) -> None:
    saver = CorralSaver(store)
    with pytest.raises(Invalid, match="no thread_id"):
        saver.put({"configurable": {}}, empty_checkpoint(), {}, {})
    with pytest.raises(Invalid, match="no checkpoint_id"):
        saver.put_writes(THREAD_CONFIG, [("c", 1)], "task")
    with pytest.raises(Invalid, check=because("unknown_strategy")):
        saver.prune(["trip"], strategy="some")
    assert rows(store, "SELECT * FROM checkpoints") == []


def test_command_line_lists_and_deletes_threads(store: Corral) -> None:
    saver = CorralSaver(store)
    first = saver.put(THREAD_CONFIG, empty_checkpoint(), {"step": 0}, {})
    saver.put(first, empty_checkpoint(), {"step": 1}, {})
    page = store.checkpoints.list(limit=1)
    older = store.checkpoints.list(after=page.next).items
    assert [item.parent for item in (*page.items, *older)] == [
        first["configurable"]["checkpoint_id"],
        None,
    ]
    assert store.checkpoints.delete("trip") == 2
    assert store.checkpoints.delete("trip") == 0
    assert store.events.newest(subject="trip").items[-1].data == {"checkpoints": 2}


def test_saver_works_through_a_daemon(store: Corral) -> None:
    with (
        run_http_server(store) as http_server,
        CorralSaver(http_server.url, token=http_server.token) as saver,
    ):
        assert run_graph_history(saver) == run_graph_history(InMemorySaver())
        saver.prune(["trip"])
        assert len(list(saver.list(THREAD_CONFIG))) == 1
        saver.delete_thread("trip")
    assert store.checkpoints.list().items == []
