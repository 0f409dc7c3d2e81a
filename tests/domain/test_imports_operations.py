"""Operations on imported records work or fail with a documented error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.api import Corral
from corral.domain.runs import ops
from corral.domain.tasks.graph import find_closing_edges, find_critical_path
from corral.kernel.errors import Conflict, CorralError, Invalid, NotFound, Refused
from tests.support import source_databases
from tests.support.grouped_cases import Cases, each_case
from tests.support.invariants import check_store
from tests.support.run_factories import add_run, queued, recorded
from tests.support.store import rows, unchanged, write

OPERATIONS: dict[str, Callable[[Corral, str], Any]] = {
    "next": lambda c, race: c.races.next(race),
    "next, with a prompt": lambda c, race: c.races.next(race, prompt="more", agents="claude"),
    "next, from a round": lambda c, race: c.races.next(race, from_round=1, budget_micros=5),
    "select": lambda c, race: c.races.select(race),
    "select, overruling": lambda c, race: c.races.select(race, "1.1", overrule=True),
    "judge": lambda c, race: c.races.judge(race, judge="claude"),
    "retry": lambda c, race: c.races.retry(race, "1.1"),
    "diff": lambda c, race: c.races.diff(race, "1.1", "a.py"),
    "changes": lambda c, race: c.races.changes(race, "1.1", "1.2"),
    "export": lambda c, race: c.races.export(race, "/missing"),
    "merge": lambda c, race: c.races.merge(race),
    "graft": lambda c, race: c.races.graft(race, "1.1", files=["a.py"]),
}


@pytest.mark.parametrize("key", ["r1", "r2"])
def test_imported_race_rejects_operations_that_need_its_repository(
    store: Corral, tmp_path: Path, key: str
) -> None:
    store.imports.import_database("multishot", source_databases.make_multishot(tmp_path))
    race_ids = rows(
        store,
        "SELECT id FROM import_origins WHERE source_table = 'runs' AND row_id = :key",
        key=key,
    )
    with Cases() as cases:
        for verb, call in OPERATIONS.items():
            with cases.case(verb):
                with unchanged(store), pytest.raises(CorralError) as caught:
                    call(store, race_ids[0][0])
                if verb.startswith("next"):
                    assert isinstance(caught.value, Refused)
                    assert caught.value.details["reason"] == "imported"
    check_store(store)


@pytest.mark.parametrize(
    "verb", ["attempt_progress", "advance", "hand_over", "wait", "clean", "latest"]
)
def test_imported_race_can_be_read(store: Corral, tmp_path: Path, verb: str) -> None:
    store.imports.import_database("multishot", source_databases.make_multishot(tmp_path))
    (race, project) = rows(store, "SELECT id, project_id FROM races")[0]
    getattr(store.races, verb)(project if verb == "latest" else race)


# -- task cycles ---------------------------------------------------------------------------------


def make_flightdeck_tasks(tmp_path: Path, dependencies: dict[str, list[str]]) -> Path:
    fields = {
        "lead_id": source_databases.LEAD,
        "project_id": "shop-1a2b3c",
        "created_at": source_databases.WHEN,
    }
    tasks = [
        fields
        | {
            "id": key,
            "role": "developer",
            "dag_status": "pending",
            "depends_on": str(keys).replace("'", '"'),
        }
        for key, keys in dependencies.items()
    ]
    return source_databases.make_flightdeck(tmp_path / "source", dag_tasks=tasks)


def test_cycle_of_imported_tasks_is_removed_and_reported(store: Corral, tmp_path: Path) -> None:
    path = make_flightdeck_tasks(
        tmp_path, {"a": ["c"], "b": ["a"], "c": ["b"], "d": ["d"], "e": ["a"]}
    )
    report = store.imports.import_database("flightdeck", path)
    graph = store.tasks.graph(store.projects.by_dir("/srv/shop").id)
    assert len(graph.tasks) == 5
    assert len(graph.edges) == 3
    assert graph.critical_path
    assert any("closes a cycle" in problem.what for problem in report.problems)
    origins = [
        row
        for row in store.imports.origins(limit=200).items
        if "depends_on" in (row.unmapped or {})
    ]
    assert {row.unmapped["depends_on"] for row in origins} >= {'["d"]'}
    check_store(store)
    assert store.imports.import_database("flightdeck", path).new == 0


def test_graph_with_a_cycle_from_an_early_import_can_be_shown(
    store: Corral, tmp_path: Path
) -> None:
    store.imports.import_database(
        "flightdeck", make_flightdeck_tasks(tmp_path, {"a": [], "b": ["a"], "c": ["b"]})
    )
    ids = dict(rows(store, "SELECT key, id FROM tasks"))
    a, b = ids["a@11111111"], ids["b@11111111"]
    from corral.db.statement import Statement

    insert = f"INSERT INTO task_dependencies (task_id, depends_on_id) VALUES ('{a}', '{b}')"
    write(store, lambda tx: tx.run(Statement(insert)))
    graph = store.tasks.graph(store.projects.by_dir("/srv/shop").id)
    assert len(graph.edges) == 3
    assert graph.critical_path == []


def test_closing_edges_are_found_one_by_one() -> None:
    dependencies = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}
    assert find_closing_edges(dependencies, [("c", "a"), ("c", "d")]) == [("c", "a")]
    assert find_closing_edges({"a": ["b"], "b": []}, [("a", "b")]) == []
    assert find_critical_path(dependencies) == ["d"]
    cycle = {str(n): [str((n + 1) % 2_000)] for n in range(2_000)}
    edges = [(task, needed_keys[0]) for task, needed_keys in cycle.items()]
    assert len(find_closing_edges(cycle, edges)) == 1
    assert len(find_closing_edges(cycle, edges, budget=0)) == 2_000


# -- roles, failed runs and list filters ----------------------------------------------------------


def test_imported_role_may_be_any_text(store: Corral) -> None:
    agent = store.agents.create("ada", role="custom role", provider="claude")
    assert (agent.role, agent.instructions) == ("custom role", None)
    assert store.agents.edit("ada", role="tester").instructions
    assert store.agents.edit("ada", role="another role").instructions is None


def test_recorded_run_can_be_marked_as_failed(store: Corral) -> None:
    import os

    run = store.runs.record(pid=os.getpid())
    failed = store.internal.runs.fail(run.id, reason="no answer")
    assert (failed.state, failed.reason) == ("failed", "no answer")
    assert store.internal.runs.fail(run.id, reason="again") == failed
    stopping = recorded(store)
    store._database.write(lambda tx: ops.request_stop(tx, stopping.id, reason="not needed"))
    assert store.runs.get(stopping.id).state == "stopping"
    stopped = store.internal.runs.fail(stopping.id, reason="no answer")
    assert (stopped.state, stopped.reason) == ("cancelled", "not needed")


@each_case("state", ["starting", "running", "stopping"])
def test_supervised_run_cannot_be_marked_as_failed(store: Corral, state: str) -> None:
    run = add_run(store, state)
    with pytest.raises(Conflict) as caught:
        store.internal.runs.fail(run, reason="no")
    assert caught.value.details["reason"] == "run_active"
    assert store.runs.get(run).state == state


def list_spellings(id: str, *names: str) -> list[str]:
    return [id, id[:20], *names]


def test_lists_accept_project_id_prefix_name_or_directory(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    project = store.projects.register(tmp_path / "shop")
    agent = store.agents.create("ada", command="cat")
    session = store.sessions.open("ada", project=project.id)
    queued(store, project_id=project.id, agent_id=agent.id)
    lists: dict[str, Callable[..., Any]] = {
        "runs": store.runs.list,
        "sessions": store.sessions.list,
        "charges": store.charges.list,
        "decisions": store.decisions.list,
        "groups": store.groups.list,
        "tasks": store.tasks.list,
        "races": store.races.list,
        "locks": store.locks.list,
        "notes": store.notes.list,
    }
    spellings = list_spellings(project.id, "shop", str(tmp_path / "shop"))
    for name, list_records in lists.items():
        pages = [list_records(project=spelling) for spelling in spellings]
        assert all(page == pages[0] for page in pages), name
        with pytest.raises((NotFound, Invalid)):
            list_records(project="unknown")
    assert store.sessions.list(project="shop").items == [session]
    assert [run.project_id for run in store.runs.list(project="shop").items] == [project.id]
    for spelling in list_spellings(agent.id, "ada"):
        assert len(store.runs.list(agent=spelling).items) == 1
        assert store.sessions.list(agent=spelling).items == [session]
    for spelling in list_spellings(session.id):
        assert store.runs.list(session=spelling).items == []
    with pytest.raises(Invalid):
        store.events.newest(project="shop")
    assert [hit for hit in store.search.find("x", project="shop").items] == []
