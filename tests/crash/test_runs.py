"""Runs and a process that is killed: no run is lost or ends twice, and no budget stays reserved.

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
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit, nothing
from tests.support.errors import because
from tests.support.run_factories import held, next_queued, run_spec, running, without_supervisors


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


ENDED = ("completed", "failed", "crashed", "cancelled", "timed_out", "interrupted")


def prepare(store: Corral, world: World) -> None:
    store.budgets.set("all", 1_000)
    store.alerts.add(["crashed", "finished", "failed"], target_kind="mailbox", target="agent:boss")


def every(store: Corral) -> list[Run]:
    return store.runs.list(limit=1_000).items[::-1]


def recover(store: Corral, world: World) -> None:
    """Somebody looks after it, twice, an hour later."""
    store.runs.recover()
    assert store.runs.recover() == []


def keep_one(store: Corral, world: World) -> None:
    """A supervisor's whole life, told to the world word by word."""
    run = store.internal.runs.enqueue(
        run_spec(host=held().host, name="one", budget_micros=60, max_restarts=0)
    )
    world.note(f"asked {run.id}")
    run = store.internal.runs.acquire(run.id, held(1))
    world.note("started")
    run = store.internal.runs.launch(run)
    world.note("launched")
    store.internal.runs.record_environment(run, {"commit": "abc"})
    store.charges.add(UsageFact(model="m", output=1, cost_micros=5, key="1"), run_id=run.id)
    run = store.internal.runs.heartbeat(run, output_bytes=10)
    store.internal.runs.add_sample(run, ResourceSample(1, 2, 3, 4))
    run = store.internal.runs.set_attention(run, Attention.NEEDS_INPUT)
    run = store.internal.runs.restart(
        run, held(1, pid=7), ExitStatus(exit_code=3), quick_failures=0
    )
    run = store.internal.runs.launch(run)
    store.internal.runs.end(run, ExitStatus(exit_code=0), output_bytes=20)
    world.note("ended 0")


def one_true_end(store: Corral, world: World) -> None:
    asked = [deed.split()[1] for deed in world.deeds if deed.startswith("asked")]
    runs = every(store)
    assert {*asked} <= {run.id for run in runs}, "what was asked for is not forgotten"
    assert store.budgets.get("all").reserved_micros == 0
    for run in runs:
        ended = [one for one in store.events.newest(subject=run.id).items if one.verb in VERBS]
        if run.state == "queued":
            assert "started" not in world.deeds
            assert ended == []
            continue
        assert run.state in ENDED
        assert len(ended) == 1
        told = store.mail.list(mailbox="agent:boss", all=True).items
        assert len(told) == 1, "one letter for one end"
        if "ended 0" in world.deeds:
            assert (run.state, run.exit_code, run.output_bytes) == ("completed", 0, 20)
        if run.state != "completed":
            assert (run.state, run.reason) == ("interrupted", "lease expired")
            assert (run.exit_code, run.signal) == (None, None), "no exit code is made up"


VERBS = ("complete", "fail", "crash", "cancel", "time_out", "interrupt")


def test_run_ends_once_wherever_its_supervisor_dies(fresh_url: FreshUrl, tmp_path: Path) -> None:
    crash_at_every_commit(fresh_url, tmp_path, Scenario(keep_one, recover, one_true_end, prepare))


def test_run_with_restarts_left_is_requeued_wherever_its_supervisor_dies(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def keep(store: Corral, world: World) -> None:
        run = store.internal.runs.enqueue(
            run_spec(host=held().host, budget_micros=60, max_restarts=1)
        )
        run = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(1)))
        world.note("launched")
        store.internal.runs.end(run, ExitStatus(exit_code=0))
        world.note("ended")

    def go_on(store: Corral, world: World) -> None:
        """The next supervisor starts what waits, and ends it."""
        store.runs.recover()
        for run in every(store):
            if run.state == "queued":
                again = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(2)))
                store.internal.runs.end(again, ExitStatus(exit_code=0))

    def check(store: Corral, world: World) -> None:
        for run in every(store):
            assert (run.state, run.exit_code) == ("completed", 0)
            assert run.attempts == 1 or "ended" not in world.deeds
        assert "launched" not in world.deeds or len(every(store)) == 1
        assert store.budgets.get("all").reserved_micros == 0

    crash_at_every_commit(fresh_url, tmp_path, Scenario(keep, go_on, check, prepare))


def test_requested_stop_survives_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def stop_three(store: Corral, world: World) -> None:
        """One that waits, and two that go; the supervisor of the last one obeys."""
        waits = store.internal.runs.enqueue(run_spec(host=held().host, budget_micros=10))
        store.runs.stop(waits.id, reason="no more")
        world.note(f"stopped {waits.id}")
        goes, obeys = (
            running(store, 1, host=held().host, budget_micros=10),
            running(store, 2, host=held().host, budget_micros=10),
        )
        for run in (goes, obeys):
            store.runs.stop(run.id, reason="no more")
            world.note(f"stopped {run.id}")
        store.internal.runs.end(obeys, ExitStatus(signal=15))
        world.note(f"ended {obeys.id}")

    def check(store: Corral, world: World) -> None:
        for deed in world.deeds:
            run = store.runs.get(deed.split()[1])
            assert (run.state, run.reason) == ("cancelled", "no more")
            if deed.startswith("ended"):
                assert run.signal == 15
        for run in every(store):
            assert run.state in ("queued", "cancelled", "interrupted")
        assert store.budgets.get("all").reserved_micros == 0

    crash_at_every_commit(fresh_url, tmp_path, Scenario(stop_three, recover, check, prepare))


def test_parked_run_is_parked_once_and_continues_later(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def park(store: Corral, world: World) -> None:
        run = running(store, 1, host=held().host, budget_micros=60, max_restarts=5)
        world.note("running")
        store.internal.runs.park(run, until=world.clock.now() + MINUTE, reason="quota")
        world.note("parked")

    def go_on(store: Corral, world: World) -> None:
        store.runs.recover()
        while (run := next_queued(store, host=held().host)) is not None:
            again = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(2)))
            world.note(f"went on {again.attempts}")
            store.internal.runs.end(again, ExitStatus(exit_code=0))

    def check(store: Corral, world: World) -> None:
        runs = every(store)
        assert [run.state for run in runs] == ["completed"] * len(runs)
        if "running" in world.deeds:
            assert "went on 2" in world.deeds
        if "parked" in world.deeds:
            verbs = [one.verb for one in store.events.newest(subject=runs[0].id).items]
            assert verbs.count("requeue") == 1
        assert store.budgets.get("all").reserved_micros == 0

    crash_at_every_commit(fresh_url, tmp_path, Scenario(park, go_on, check, prepare, later_ms=HOUR))


def test_takeover_leaves_one_supervisor_wherever_one_dies(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def take(store: Corral, world: World) -> None:
        (run,) = every(store)
        taken = store.internal.runs.take_over(
            run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
        )
        world.note("taken")
        store.internal.runs.end(taken, ExitStatus(exit_code=4))
        world.note("ended")

    def come_late(store: Corral, world: World) -> None:
        """The first supervisor wakes up, and says how it thinks that it ended."""
        (run,) = every(store)
        late = Run(**{name: getattr(run, name) for name in Run.__struct_fields__} | {"fence": 1})
        if run.fence > 1 and run.is_live:
            with pytest.raises(Held, check=because("taken_over", owner="supervisor:2")):
                store.internal.runs.end(late, ExitStatus(exit_code=0))
            store.runs.recover()
        else:
            store.internal.runs.end(late, ExitStatus(exit_code=0))

    def check(store: Corral, world: World) -> None:
        (run,) = every(store)
        if "ended" in world.deeds:
            assert run.exit_code == 4
        elif "taken" in world.deeds:
            assert run.exit_code in (4, None)
        assert not run.is_live

    def one_run(store: Corral, world: World) -> None:
        prepare(store, world)
        running(store, 1, host=held().host, budget_micros=60)

    crash_at_every_commit(fresh_url, tmp_path, Scenario(take, come_late, check, one_run))


def test_deleting_a_run_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def three(store: Corral, world: World) -> None:
        for number in range(3):
            run = running(store, number)
            store.internal.runs.add_sample(run, ResourceSample(1, 2, 3, 4))
            store.internal.runs.end(run, ExitStatus(exit_code=0))

    def forget(store: Corral, world: World) -> None:
        for run in every(store):
            store.runs.delete(run.id)
            world.note(run.id)

    def check(store: Corral, world: World) -> None:
        left = every(store)
        assert {run.id for run in left}.isdisjoint(world.deeds)
        for run in left:
            assert store.runs.get_launch(run.id).run_id == run.id
            assert len(store.runs.samples(run.id)) == 1

    crash_at_every_commit(fresh_url, tmp_path, Scenario(forget, nothing, check, three))
