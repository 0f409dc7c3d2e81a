"""Looking for runs, the line in which they wait, and forgetting them."""

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
from tests.support.store import refuses, rows, shared_length, unchanged, walk

HERE = "here"


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


def ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


# -- one run -----------------------------------------------------------------------------------


def test_run_is_found_by_its_id_shortened_or_not(store: Corral) -> None:
    one, other = queued(store), queued(store)
    length = shared_length(one.id, other.id)
    assert store.runs.get(one.id) == one
    assert store.runs.get(one.id.removeprefix("run_").upper()) == one
    assert store.runs.get(other.id[: length + 1]) == other
    with pytest.raises(Ambiguous):
        store.runs.get(one.id[:length])
    with pytest.raises(NotFound):
        store.runs.get("run_0000")


@each_case("typed", ["", "a b", "prj_0", "ä", "a\0b", "\ud800", "x" * 1_000])
def test_unknown_run_raises_not_found(store: Corral, typed: str) -> None:
    queued(store)
    for look in (store.runs.get, store.runs.get_launch, store.runs.samples):
        with pytest.raises((Invalid, NotFound)):
            look(typed)


def test_live_run_is_preferred_when_found_by_name(store: Corral) -> None:
    old = ended(store, name="nightly")
    assert store.runs.get("nightly") == old
    new = running(store, name="nightly")
    assert store.runs.get("nightly") == new
    assert store.runs.get_launch("nightly").run_id == new.id
    assert store.internal.runs.request_stop("nightly").id == new.id
    assert store.runs.get(old.id) == old


def test_live_runs_have_unique_names(store: Corral) -> None:
    first = queued(store, name="twin")
    with pytest.raises(Conflict) as caught:
        queued(store, name="twin")
    assert caught.value.details["id"] == first.id
    store.internal.runs.request_stop(first.id)
    assert store.runs.get("twin") == store.runs.get(first.id)
    assert queued(store, name="twin").id != first.id


def test_name_may_look_like_an_id_prefix(store: Corral) -> None:
    other = queued(store)
    named = queued(store, name=other.id.removeprefix("run_")[:8])
    assert store.runs.get(named.name or "") == named


def test_newest_run_with_a_pid_is_found(store: Corral) -> None:
    old = ended(store)
    assert store.runs.by_pid(old.pid or 0) == old
    new = running(store)
    assert new.pid == old.pid
    assert store.runs.by_pid(new.pid or 0) == new
    assert store.runs.by_pid(1) is None
    with pytest.raises(Invalid):
        store.runs.by_pid("1")


# -- lists -------------------------------------------------------------------------------------


@pytest.fixture
def projects(store: Corral, tmp_path: Path) -> tuple[str, str]:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(store.projects.register(tmp_path / name).id)
    return made[0], made[1]


@pytest.fixture
def many(store: Corral, projects: tuple[str, str]) -> list[Run]:
    """Runs in all kinds of states, of two projects and none, newest first."""
    made: list[Run] = []
    for project in (*projects, None):
        wanted = {"project_id": project, "session_id": "ses_1" if project else None}
        made.append(queued(store, **wanted))
        made.append(starting(store, **wanted))
        made.append(running(store, **wanted))
        made.append(stopping(store, **wanted))
        made.append(ended(store, **wanted))
        made.append(ended(store, ExitStatus(exit_code=1), **wanted))
        made.append(ended(store, ExitStatus(signal=9), **wanted))
    return made[::-1]


def test_runs_are_listed_newest_first_in_pages(store: Corral, many: list[Run]) -> None:
    for limit in (1, 2, 4, 50):
        assert walk(store.runs.list, limit=limit) == many


def test_runs_are_filtered_by_project_session_or_state(
    store: Corral, many: list[Run], projects: tuple[str, str]
) -> None:
    for project in projects:
        of = [run for run in many if run.project_id == project]
        assert walk(store.runs.list, project=project) == of
        for state in RunState:
            assert walk(store.runs.list, project=project, state=state) == [
                run for run in of if run.state is state
            ]
    for state in RunState:
        assert walk(store.runs.list, state=state) == [run for run in many if run.state is state]
    assert walk(store.runs.list, session="ses_1") == [run for run in many if run.session_id]
    assert walk(store.runs.list, live=True) == [run for run in many if run.is_live]
    assert store.runs.list(project="prj_0n3").items == []
    assert store.runs.list(session="ses_0n3").items == []


def test_filters_can_be_combined(store: Corral, many: list[Run], projects: tuple[str, str]) -> None:
    """What is asked for is given, or refused, and never something else."""
    asked = [
        {"project": projects[0], "live": True},
        {"session": "ses_1", "live": True},
        {"session": "ses_1", "state": "completed"},
        {"session": "ses_1", "project": projects[1]},
        {"state": "completed", "live": True},
    ]
    for wanted in asked:
        try:
            found = walk(store.runs.list, **wanted)
        except Invalid:
            continue
        for run in found:
            assert run.project_id == wanted.get("project", run.project_id), wanted
            assert run.session_id == wanted.get("session", run.session_id), wanted
            assert run.state == wanted.get("state", run.state), wanted
            assert run.is_live or not wanted.get("live"), wanted


def test_list_that_grows_between_pages_has_no_duplicates(store: Corral, many: list[Run]) -> None:
    assert walk(store.runs.list, between=lambda: queued(store)) == many


@each_case(
    "wrong",
    [
        {"limit": 0},
        {"limit": 1_001},
        {"limit": "5"},
        {"state": "asleep"},
        {"state": ""},
        {"after": "made up"},
        {"after": "WzFd"},
    ],
    ids=str,
)
def test_invalid_filters_are_rejected(store: Corral, wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        store.runs.list(**wrong)


@each_case("of", ["project", "session"])
@each_case("made_up", ["a\0b", "\ud800"])
def test_filter_for_missing_records_is_empty_or_rejected(
    store: Corral, of: str, made_up: str
) -> None:
    with suppress(Invalid):
        assert store.runs.list(**{of: made_up}).items == []


# -- the line ----------------------------------------------------------------------------------


def test_project_with_the_fewest_active_runs_is_next(
    store: Corral, projects: tuple[str, str]
) -> None:
    one, two = projects
    first = [queued(store, project_id=one) for _ in range(3)]
    second = [queued(store, project_id=two) for _ in range(2)]
    alone = queued(store)
    order: list[str] = []
    while (run := next_queued(store, host=ELSEWHERE)) is not None:
        store.internal.runs.acquire(run.id, held(len(order)))
        order.append(run.id)
    assert order == [
        first[0].id,
        second[0].id,
        alone.id,
        first[1].id,
        second[1].id,
        first[2].id,
    ]


def test_end_of_a_run_frees_a_slot_for_its_project(
    store: Corral, projects: tuple[str, str]
) -> None:
    one, two = projects
    busy = [running(store, project_id=one), running(store, project_id=two)]
    for project in (one, two):
        queued(store, project_id=project)
    store.internal.runs.end(busy[1], ExitStatus(exit_code=0))
    found = next_queued(store, host=ELSEWHERE)
    assert found is not None
    assert found.project_id == two


def test_queued_runs_wait_for_their_due_time_and_host(store: Corral, clock: ManualClock) -> None:
    later = queued(store, due_at=clock.now() + HOUR)
    theirs = queued(store, host="there")
    assert next_queued(store, host=HERE) is None
    assert next_queued(store, host="there") == theirs
    clock.advance(HOUR)
    assert next_queued(store, host=HERE) == later
    mine = queued(store, host=HERE)
    store.internal.runs.acquire(later.id, held())
    assert next_queued(store, host=HERE) == mine


def test_max_concurrent_limits_the_active_runs(store: Corral) -> None:
    store.settings.set("runs.max_concurrent", 2)
    first, second, third = (queued(store) for _ in range(3))
    assert store._database.read(dispatch.count_free_slots) == 2
    taken = store.internal.runs.acquire(first.id, held(1))
    store.internal.runs.acquire(second.id, held(2))
    assert store._database.read(dispatch.count_free_slots) == 0
    with refuses(store, NoRoom) as caught:
        store.internal.runs.acquire(third.id, held(3))
    assert "runs.max_concurrent" in caught.value.message
    store.internal.runs.request_stop(taken.id)
    assert store._database.read(dispatch.count_free_slots) == 0, "it is still there"
    store.internal.runs.end(taken, ExitStatus(signal=15))
    assert store.internal.runs.acquire(third.id, held(3)).state is RunState.STARTING


def test_max_concurrent_may_be_lower_than_the_active_runs(store: Corral) -> None:
    for _ in range(3):
        running(store)
    store.settings.set("runs.max_concurrent", 1)
    assert store._database.read(dispatch.count_free_slots) == 0


def test_recorded_processes_use_no_slot(store: Corral) -> None:
    store.settings.set("runs.max_concurrent", 1)
    add_run(store, "running", mode="recorded")
    assert store._database.read(dispatch.count_free_slots) == 1


def test_requeued_run_may_start_on_another_host(store: Corral, clock: ManualClock) -> None:
    run = running(store, max_restarts=3)  # asked for without naming a machine
    clock.advance(HOUR)
    (found,) = store.runs.recover()
    assert (found.was, found.state, found.reason) == ("running", "queued", "lease expired")
    again = next_queued(store, host="a-third-machine")
    assert again is not None
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
    assert next_queued(store, host="a-third-machine") is None, "its directory is not there"
    again = next_queued(store, host=ELSEWHERE)
    assert again is not None
    assert again.id == run.id


# -- forgetting --------------------------------------------------------------------------------

TABLES = ("runs", "launches", "resource_samples")


def counts(store: Corral) -> list[int]:
    return [rows(store, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES]


def test_deleting_an_ended_run_deletes_all_its_rows(store: Corral) -> None:
    run = ended(store)
    store.internal.runs.add_sample(run, ResourceSample(1, 1, 1, 1))
    kept = ended(store)
    store.internal.runs.add_sample(kept, ResourceSample(1, 1, 1, 1))
    assert store.runs.delete(run.id) == run
    assert counts(store) == [1, 1, 1]
    for look in (store.runs.get, store.runs.get_launch, store.runs.delete):
        with pytest.raises(NotFound):
            look(run.id)
    assert store.runs.get(kept.id) == kept


@each_case("make", [queued, starting, running, stopping])
def test_live_run_cannot_be_deleted(store: Corral, make: Callable[[Corral], Run]) -> None:
    run = make(store)
    with refuses(store, Conflict) as caught:
        store.runs.delete(run.id)
    assert caught.value.details["reason"] == "run_active"


def test_delete_all_deletes_only_the_runs_of_the_project(
    store: Corral, projects: tuple[str, str]
) -> None:
    one, two = projects
    for project in (one, one, one, two):
        ended(store, project_id=project)
    assert store.runs.delete_all(project=one) == 3
    assert store.runs.delete_all(project=one) == 0
    assert [run.project_id for run in store.runs.list().items] == [two]
    with pytest.raises(NotFound):
        store.runs.delete_all(project="prj_zzz")


@pytest.mark.parametrize("newer", [0, 60])
def test_delete_all_is_refused_while_a_run_is_live(
    store: Corral, projects: tuple[str, str], newer: int
) -> None:
    live = queued(store, project_id=projects[0])
    with store.transaction() as tx:
        for at in range(newer):
            insert_run(tx, "completed", store.now() + at, project_id=projects[0])
    with unchanged(store), pytest.raises(Conflict) as caught:
        store.runs.delete_all(project=projects[0])
    assert live.id in caught.value.message


def test_old_runs_are_listed_by_their_end(store: Corral, clock: ManualClock) -> None:
    old = ended(store)
    clock.advance(DAY)
    new = ended(store)
    running(store)
    cut = clock.now() - MINUTE
    with store.transaction() as tx:
        assert ops.PRUNABLE.list_keys(tx, before=cut) == [old.id]
        assert ops.PRUNABLE.list_keys(tx, before=clock.now() + 1) == [old.id, new.id]
        assert ops.PRUNABLE.list_keys(tx, before=clock.now() + 1, limit=1) == [old.id]
