"""Run queries: lookup, lists and filters, the queue, slots and deletion."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.runs import dispatch, ops
from corral.domain.runs.model import ResourceSample, Run, RunState
from corral.kernel.clock import DAY, HOUR, MINUTE, ManualClock
from corral.kernel.errors import Ambiguous, Conflict, Invalid, NoRoom, NotFound
from corral.kernel.exit_status import ExitStatus
from tests.support.grouped_cases import each_case
from tests.support.run_factories import (
    ELSEWHERE,
    add_run,
    ended,
    held,
    insert_run,
    next_queued,
    queued,
    running,
    starting,
    stopping,
    without_supervisors,
)
from tests.support.store import raises_without_change, read, rows, shared_length, unchanged, walk

LOCAL_HOST = "local"


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


def list_ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


# -- one run -----------------------------------------------------------------------------------


def test_run_is_found_by_its_id_shortened_or_not(store: Corral) -> None:
    first_run, second_run = queued(store), queued(store)
    length = shared_length(first_run.id, second_run.id)
    assert store.runs.get(first_run.id) == first_run
    assert store.runs.get(first_run.id.removeprefix("run_").upper()) == first_run
    assert store.runs.get(second_run.id[: length + 1]) == second_run
    with pytest.raises(Ambiguous):
        store.runs.get(first_run.id[:length])
    with pytest.raises(NotFound):
        store.runs.get("run_0000")


@each_case("id", ["", "a b", "prj_0", "ä", "a\0b", "\ud800", "x" * 1_000])
def test_unknown_run_raises_not_found(store: Corral, id: str) -> None:
    queued(store)
    for get in (store.runs.get, store.runs.get_launch, store.runs.samples):
        with pytest.raises((Invalid, NotFound)):
            get(id)


def test_live_run_is_preferred_when_found_by_name(store: Corral) -> None:
    ended_run = ended(store, name="nightly")
    assert store.runs.get("nightly") == ended_run
    live_run = running(store, name="nightly")
    assert store.runs.get("nightly") == live_run
    assert store.runs.get_launch("nightly").run_id == live_run.id
    assert store.internal.runs.request_stop("nightly").id == live_run.id
    assert store.runs.get(ended_run.id) == ended_run


def test_live_runs_have_unique_names(store: Corral) -> None:
    run = queued(store, name="twin")
    with pytest.raises(Conflict) as caught:
        queued(store, name="twin")
    assert caught.value.details["id"] == run.id
    store.internal.runs.request_stop(run.id)
    assert store.runs.get("twin") == store.runs.get(run.id)
    assert queued(store, name="twin").id != run.id


def test_name_may_look_like_an_id_prefix(store: Corral) -> None:
    unnamed_run = queued(store)
    named_run = queued(store, name=unnamed_run.id.removeprefix("run_")[:8])
    assert store.runs.get(named_run.name or "") == named_run


def test_newest_run_with_a_pid_is_found(store: Corral) -> None:
    ended_run = ended(store)
    assert store.runs.by_pid(ended_run.pid or 0) == ended_run
    live_run = running(store)
    assert live_run.pid == ended_run.pid
    assert store.runs.by_pid(live_run.pid or 0) == live_run
    assert store.runs.by_pid(1) is None
    with pytest.raises(Invalid):
        store.runs.by_pid("1")


# -- lists -------------------------------------------------------------------------------------


@pytest.fixture
def projects(store: Corral, tmp_path: Path) -> tuple[str, str]:
    ids = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        ids.append(store.projects.register(tmp_path / name).id)
    return ids[0], ids[1]


@pytest.fixture
def all_runs(store: Corral, projects: tuple[str, str]) -> list[Run]:
    """Runs in every state, of two projects and of none, newest first."""
    runs: list[Run] = []
    for project in (*projects, None):
        fields = {"project_id": project, "session_id": "ses_1" if project else None}
        runs.append(queued(store, **fields))
        runs.append(starting(store, **fields))
        runs.append(running(store, **fields))
        runs.append(stopping(store, **fields))
        runs.append(ended(store, **fields))
        runs.append(ended(store, ExitStatus(exit_code=1), **fields))
        runs.append(ended(store, ExitStatus(signal=9), **fields))
    return runs[::-1]


def test_runs_are_listed_newest_first_in_pages(store: Corral, all_runs: list[Run]) -> None:
    for limit in (1, 2, 4, 50):
        assert walk(store.runs.list, limit=limit) == all_runs


def test_runs_are_filtered_by_project_session_or_state(
    store: Corral, all_runs: list[Run], projects: tuple[str, str]
) -> None:
    for project in projects:
        project_runs = [run for run in all_runs if run.project_id == project]
        assert walk(store.runs.list, project=project) == project_runs
        for state in RunState:
            assert walk(store.runs.list, project=project, state=state) == [
                run for run in project_runs if run.state is state
            ]
    for state in RunState:
        assert walk(store.runs.list, state=state) == [run for run in all_runs if run.state is state]
    assert walk(store.runs.list, session="ses_1") == [run for run in all_runs if run.session_id]
    assert walk(store.runs.list, live=True) == [run for run in all_runs if run.is_live]
    assert store.runs.list(project="prj_0n3").items == []
    assert store.runs.list(session="ses_0n3").items == []


def test_filters_can_be_combined(
    store: Corral, all_runs: list[Run], projects: tuple[str, str]
) -> None:
    """A combination of filters is applied completely or rejected."""
    filters = [
        {"project": projects[0], "live": True},
        {"session": "ses_1", "live": True},
        {"session": "ses_1", "state": "completed"},
        {"session": "ses_1", "project": projects[1]},
        {"state": "completed", "live": True},
    ]
    for options in filters:
        try:
            runs = walk(store.runs.list, **options)
        except Invalid:
            continue
        for run in runs:
            assert run.project_id == options.get("project", run.project_id), options
            assert run.session_id == options.get("session", run.session_id), options
            assert run.state == options.get("state", run.state), options
            assert run.is_live or not options.get("live"), options


def test_list_that_grows_between_pages_has_no_duplicates(
    store: Corral, all_runs: list[Run]
) -> None:
    assert walk(store.runs.list, between=lambda: queued(store)) == all_runs


@each_case(
    "options",
    [
        {"limit": 0},
        {"limit": 1_001},
        {"limit": "5"},
        {"state": "unknown"},
        {"state": ""},
        {"after": "invalid"},
        {"after": "WzFd"},
    ],
    ids=str,
)
def test_invalid_filters_are_rejected(store: Corral, options: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        store.runs.list(**options)


@each_case("field", ["project", "session"])
@each_case("id", ["a\0b", "\ud800"])
def test_filter_for_missing_records_is_empty_or_rejected(
    store: Corral, field: str, id: str
) -> None:
    with suppress(Invalid):
        assert store.runs.list(**{field: id}).items == []


# -- the queue ---------------------------------------------------------------------------------


def test_project_with_the_fewest_active_runs_is_next(
    store: Corral, projects: tuple[str, str]
) -> None:
    first_project, second_project = projects
    runs_of_one = [queued(store, project_id=first_project) for _ in range(3)]
    runs_of_two = [queued(store, project_id=second_project) for _ in range(2)]
    run_without_project = queued(store)
    order: list[str] = []
    while (run := next_queued(store, host=ELSEWHERE)) is not None:
        store.internal.runs.acquire(run.id, held(len(order)))
        order.append(run.id)
    assert order == [
        runs_of_one[0].id,
        runs_of_two[0].id,
        run_without_project.id,
        runs_of_one[1].id,
        runs_of_two[1].id,
        runs_of_one[2].id,
    ]


def test_end_of_a_run_frees_a_slot_for_its_project(
    store: Corral, projects: tuple[str, str]
) -> None:
    first_project, second_project = projects
    active = [running(store, project_id=first_project), running(store, project_id=second_project)]
    for project in (first_project, second_project):
        queued(store, project_id=project)
    store.internal.runs.record_end(active[1], ExitStatus(exit_code=0))
    next_run = next_queued(store, host=ELSEWHERE)
    assert next_run is not None
    assert next_run.project_id == second_project


def test_queued_runs_wait_for_their_due_time_and_host(store: Corral, clock: ManualClock) -> None:
    delayed = queued(store, due_at=clock.now() + HOUR)
    remote = queued(store, host="remote")
    assert next_queued(store, host=LOCAL_HOST) is None
    assert next_queued(store, host="remote") == remote
    clock.advance(HOUR)
    assert next_queued(store, host=LOCAL_HOST) == delayed
    local = queued(store, host=LOCAL_HOST)
    store.internal.runs.acquire(delayed.id, held())
    assert next_queued(store, host=LOCAL_HOST) == local


def test_max_concurrent_limits_the_active_runs(store: Corral) -> None:
    store.settings.set("runs.max_concurrent", 2)
    first_run, second_run, third_run = (queued(store) for _ in range(3))
    assert read(store, dispatch.count_free_slots) == 2
    started = store.internal.runs.acquire(first_run.id, held(1))
    store.internal.runs.acquire(second_run.id, held(2))
    assert read(store, dispatch.count_free_slots) == 0
    with raises_without_change(store, NoRoom) as caught:
        store.internal.runs.acquire(third_run.id, held(3))
    assert "runs.max_concurrent" in caught.value.message
    store.internal.runs.request_stop(started.id)
    assert read(store, dispatch.count_free_slots) == 0, "a stopping run uses its slot"
    store.internal.runs.record_end(started, ExitStatus(signal=15))
    assert store.internal.runs.acquire(third_run.id, held(3)).state is RunState.STARTING


def test_max_concurrent_may_be_lower_than_the_active_runs(store: Corral) -> None:
    for _ in range(3):
        running(store)
    store.settings.set("runs.max_concurrent", 1)
    assert read(store, dispatch.count_free_slots) == 0


def test_recorded_processes_use_no_slot(store: Corral) -> None:
    store.settings.set("runs.max_concurrent", 1)
    add_run(store, "running", mode="recorded")
    assert read(store, dispatch.count_free_slots) == 1


def test_requeued_run_may_start_on_another_host(store: Corral, clock: ManualClock) -> None:
    run = running(store, max_restarts=3)  # the request named no host
    clock.advance(HOUR)
    (result,) = store.runs.recover()
    assert (result.was, result.state, result.reason) == ("running", "queued", "lease expired")
    next_run = next_queued(store, host="a-third-machine")
    assert next_run is not None
    started = store.internal.runs.acquire(
        run.id, held(2, host="a-third-machine", folder="/srv/other")
    )
    assert (started.host, started.attempts) == ("a-third-machine", 2)


def test_pinned_run_waits_for_its_host(store: Corral, clock: ManualClock) -> None:
    queued(store, max_restarts=3, host=ELSEWHERE)
    run = store.internal.runs.launch(
        store.internal.runs.acquire(next_queued(store, host=ELSEWHERE).id, held())
    )
    clock.advance(HOUR)
    store.runs.recover()
    assert next_queued(store, host="a-third-machine") is None, "the run is pinned to its host"
    next_run = next_queued(store, host=ELSEWHERE)
    assert next_run is not None
    assert next_run.id == run.id


# -- deletion ----------------------------------------------------------------------------------

TABLES = ("runs", "launches", "resource_samples")


def count_rows(store: Corral) -> list[int]:
    return [rows(store, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES]


def test_deleting_an_ended_run_deletes_all_its_rows(store: Corral) -> None:
    run = ended(store)
    store.internal.runs.add_sample(run, ResourceSample(1, 1, 1, 1))
    other_run = ended(store)
    store.internal.runs.add_sample(other_run, ResourceSample(1, 1, 1, 1))
    assert store.runs.delete(run.id) == run
    assert count_rows(store) == [1, 1, 1]
    for operation in (store.runs.get, store.runs.get_launch, store.runs.delete):
        with pytest.raises(NotFound):
            operation(run.id)
    assert store.runs.get(other_run.id) == other_run


@each_case("create_run", [queued, starting, running, stopping])
def test_live_run_cannot_be_deleted(store: Corral, create_run: Callable[[Corral], Run]) -> None:
    run = create_run(store)
    with raises_without_change(store, Conflict) as caught:
        store.runs.delete(run.id)
    assert caught.value.details["reason"] == "run_active"


def test_delete_all_deletes_only_the_runs_of_the_project(
    store: Corral, projects: tuple[str, str]
) -> None:
    first_project, second_project = projects
    for project in (first_project, first_project, first_project, second_project):
        ended(store, project_id=project)
    assert store.runs.delete_all(project=first_project) == 3
    assert store.runs.delete_all(project=first_project) == 0
    assert [run.project_id for run in store.runs.list().items] == [second_project]
    with pytest.raises(NotFound):
        store.runs.delete_all(project="prj_zzz")


@pytest.mark.parametrize("newer_runs", [0, 60])
def test_delete_all_is_refused_while_a_run_is_live(
    store: Corral, projects: tuple[str, str], newer_runs: int
) -> None:
    live_run = queued(store, project_id=projects[0])
    with store.transaction() as tx:
        for age in range(newer_runs):
            insert_run(tx, "completed", store.now() + age, project_id=projects[0])
    with unchanged(store), pytest.raises(Conflict) as caught:
        store.runs.delete_all(project=projects[0])
    assert live_run.id in caught.value.message


def test_old_runs_are_listed_by_their_end(store: Corral, clock: ManualClock) -> None:
    older = ended(store)
    clock.advance(DAY)
    newer = ended(store)
    running(store)
    cutoff = clock.now() - MINUTE
    with store.transaction() as tx:
        assert ops.PRUNABLE.list_keys(tx, before=cutoff) == [older.id]
        assert ops.PRUNABLE.list_keys(tx, before=clock.now() + 1) == [older.id, newer.id]
        assert ops.PRUNABLE.list_keys(tx, before=clock.now() + 1, limit=1) == [older.id]
