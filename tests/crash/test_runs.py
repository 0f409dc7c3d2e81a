"""Crashes of supervisors: no run is lost or ends twice, and no budget stays reserved.

The killed processes are supervisors without agents, which only use the store. `tests/supervisor`
kills agents, with and without their supervisors.
"""

from pathlib import Path

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.runs.model import Attention, ResourceSample, Run
from corral.kernel.clock import HOUR, MINUTE
from corral.kernel.errors import Held
from corral.kernel.exit_status import ExitStatus
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit, do_nothing
from tests.support.errors import because
from tests.support.run_factories import held, next_queued, run_spec, running, without_supervisors


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


ENDED = ("completed", "failed", "crashed", "cancelled", "timed_out", "interrupted")


def prepare(store: Corral, world: World) -> None:
    store.budgets.set("all", 1_000)
    store.alerts.add(["crashed", "finished", "failed"], target_kind="mailbox", target="agent:boss")


def list_runs(store: Corral) -> list[Run]:
    return store.runs.list(limit=1_000).items[::-1]


def recover(store: Corral, world: World) -> None:
    """Recover twice, an hour later; the second recovery finds nothing."""
    store.runs.recover()
    assert store.runs.recover() == []


def supervise_one(store: Corral, world: World) -> None:
    """Supervise one run from start to end, and record each step."""
    run = store.internal.runs.enqueue(
        run_spec(host=held().host, name="one", budget_micros=60, max_restarts=0)
    )
    world.record(f"requested {run.id}")
    run = store.internal.runs.acquire(run.id, held(1))
    world.record("started")
    run = store.internal.runs.launch(run)
    world.record("launched")
    store.internal.runs.record_environment(run, {"commit": "abc"})
    store.charges.add(UsageFact(model="m", output=1, cost_micros=5, key="1"), run_id=run.id)
    run = store.internal.runs.heartbeat(run, output_bytes=10)
    store.internal.runs.add_sample(run, ResourceSample(1, 2, 3, 4))
    run = store.internal.runs.set_attention(run, Attention.NEEDS_INPUT)
    run = store.internal.runs.restart(
        run, held(1, pid=7), ExitStatus(exit_code=3), quick_failures=0
    )
    run = store.internal.runs.launch(run)
    store.internal.runs.record_end(run, ExitStatus(exit_code=0), output_bytes=20)
    world.record("ended 0")


def check_one_end(store: Corral, world: World) -> None:
    requested = [record.split()[1] for record in world.records if record.startswith("requested")]
    runs = list_runs(store)
    assert {*requested} <= {run.id for run in runs}, "every requested run exists"
    assert store.budgets.get("all").reserved_micros == 0
    for run in runs:
        ended = [
            event for event in store.events.newest(subject=run.id).items if event.verb in VERBS
        ]
        if run.state == "queued":
            assert "started" not in world.records
            assert ended == []
            continue
        assert run.state in ENDED
        assert len(ended) == 1
        letters = store.mail.list(mailbox="agent:boss", all=True).items
        assert len(letters) == 1, "one letter for one end"
        if "ended 0" in world.records:
            assert (run.state, run.exit_code, run.output_bytes) == ("completed", 0, 20)
        if run.state != "completed":
            assert (run.state, run.reason) == ("interrupted", "lease expired")
            assert (run.exit_code, run.signal) == (None, None), "the exit status is unknown"


VERBS = ("complete", "fail", "crash", "cancel", "time_out", "interrupt")


def test_run_ends_once_wherever_its_supervisor_dies(fresh_url: FreshUrl, tmp_path: Path) -> None:
    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(supervise_one, recover, check_one_end, prepare)
    )


def test_run_with_restarts_left_is_requeued_wherever_its_supervisor_dies(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def supervise(store: Corral, world: World) -> None:
        run = store.internal.runs.enqueue(
            run_spec(host=held().host, budget_micros=60, max_restarts=1)
        )
        run = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(1)))
        world.record("launched")
        store.internal.runs.record_end(run, ExitStatus(exit_code=0))
        world.record("ended")

    def resume(store: Corral, world: World) -> None:
        """Start and end the queued runs with a new supervisor."""
        store.runs.recover()
        for run in list_runs(store):
            if run.state == "queued":
                run = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(2)))
                store.internal.runs.record_end(run, ExitStatus(exit_code=0))

    def check(store: Corral, world: World) -> None:
        for run in list_runs(store):
            assert (run.state, run.exit_code) == ("completed", 0)
            assert run.attempts == 1 or "ended" not in world.records
        assert "launched" not in world.records or len(list_runs(store)) == 1
        assert store.budgets.get("all").reserved_micros == 0

    crash_at_every_commit(fresh_url, tmp_path, Scenario(supervise, resume, check, prepare))


def test_requested_stop_survives_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def stop_three(store: Corral, world: World) -> None:
        """Stop a queued run and two running ones; only the last supervisor ends its run."""
        queued = store.internal.runs.enqueue(run_spec(host=held().host, budget_micros=10))
        store.runs.stop(queued.id, reason="not needed")
        world.record(f"stopped {queued.id}")
        first, second = (
            running(store, 1, host=held().host, budget_micros=10),
            running(store, 2, host=held().host, budget_micros=10),
        )
        for run in (first, second):
            store.runs.stop(run.id, reason="not needed")
            world.record(f"stopped {run.id}")
        store.internal.runs.record_end(second, ExitStatus(signal=15))
        world.record(f"ended {second.id}")

    def check(store: Corral, world: World) -> None:
        for record in world.records:
            run = store.runs.get(record.split()[1])
            assert (run.state, run.reason) == ("cancelled", "not needed")
            if record.startswith("ended"):
                assert run.signal == 15
        for run in list_runs(store):
            assert run.state in ("queued", "cancelled", "interrupted")
        assert store.budgets.get("all").reserved_micros == 0

    crash_at_every_commit(fresh_url, tmp_path, Scenario(stop_three, recover, check, prepare))


def test_parked_run_is_parked_once_and_continues_later(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def park(store: Corral, world: World) -> None:
        run = running(store, 1, host=held().host, budget_micros=60, max_restarts=5)
        world.record("running")
        store.internal.runs.park(run, until=world.clock.now() + MINUTE, reason="quota")
        world.record("parked")

    def resume(store: Corral, world: World) -> None:
        store.runs.recover()
        while (run := next_queued(store, host=held().host)) is not None:
            run = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(2)))
            world.record(f"attempt {run.attempts}")
            store.internal.runs.record_end(run, ExitStatus(exit_code=0))

    def check(store: Corral, world: World) -> None:
        runs = list_runs(store)
        assert [run.state for run in runs] == ["completed"] * len(runs)
        if "running" in world.records:
            assert "attempt 2" in world.records
        if "parked" in world.records:
            verbs = [event.verb for event in store.events.newest(subject=runs[0].id).items]
            assert verbs.count("requeue") == 1
        assert store.budgets.get("all").reserved_micros == 0

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(park, resume, check, prepare, later_ms=HOUR)
    )


def test_takeover_leaves_one_supervisor_wherever_one_dies(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def take_over(store: Corral, world: World) -> None:
        (run,) = list_runs(store)
        run = store.internal.runs.take_over(
            run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
        )
        world.record("taken")
        store.internal.runs.record_end(run, ExitStatus(exit_code=4))
        world.record("ended")

    def end_late(store: Corral, world: World) -> None:
        """The first supervisor resumes and reports an end."""
        (run,) = list_runs(store)
        late = Run(**{name: getattr(run, name) for name in Run.__struct_fields__} | {"fence": 1})
        if run.fence > 1 and run.is_live:
            with pytest.raises(Held, check=because("taken_over", owner="supervisor:2")):
                store.internal.runs.record_end(late, ExitStatus(exit_code=0))
            store.runs.recover()
        else:
            store.internal.runs.record_end(late, ExitStatus(exit_code=0))

    def check(store: Corral, world: World) -> None:
        (run,) = list_runs(store)
        if "ended" in world.records:
            assert run.exit_code == 4
        elif "taken" in world.records:
            assert run.exit_code in (4, None)
        assert not run.is_live

    def prepare_run(store: Corral, world: World) -> None:
        prepare(store, world)
        running(store, 1, host=held().host, budget_micros=60)

    crash_at_every_commit(fresh_url, tmp_path, Scenario(take_over, end_late, check, prepare_run))


def test_deleting_a_run_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare_three(store: Corral, world: World) -> None:
        for number in range(3):
            run = running(store, number)
            store.internal.runs.add_sample(run, ResourceSample(1, 2, 3, 4))
            store.internal.runs.record_end(run, ExitStatus(exit_code=0))

    def delete_all(store: Corral, world: World) -> None:
        for run in list_runs(store):
            store.runs.delete(run.id)
            world.record(run.id)

    def check(store: Corral, world: World) -> None:
        remaining = list_runs(store)
        assert {run.id for run in remaining}.isdisjoint(world.records)
        for run in remaining:
            assert store.runs.get_launch(run.id).run_id == run.id
            assert len(store.runs.samples(run.id)) == 1

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(delete_all, do_nothing, check, prepare_three)
    )
