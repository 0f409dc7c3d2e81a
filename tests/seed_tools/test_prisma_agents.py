"""Behaviours 1 to 10 of agents, sessions and runs that users of prisma-agents rely on.

Other tests cover three of them too: concurrent opens of an empty store
(`tests/concurrency/test_store_open.py`), equal results on both engines (every test with the fixture
`store`), and backups (`tests/domain/test_store_backup.py`).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.adapters.providers.facts import UsageFact
from corral.adapters.providers.provider import LaunchRequest
from corral.adapters.providers.registry import get_provider
from corral.api import Corral
from corral.domain.runs.model import Attention, RunState
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import Conflict, Held
from corral.kernel.exit_status import ExitStatus
from tests.support.home import Home, wait_until
from tests.support.processes import run_concurrently
from tests.support.run_factories import ended, held, queued, run_spec, running, without_supervisors
from tests.support.store import contents, list_events, raises_without_change, rows, unchanged
from tests.support.threads import race


def test_1_ten_concurrent_first_opens_create_one_schema(
    empty_url: str,
) -> None:
    def work() -> str:
        with corral.open(empty_url) as store:
            return store.internal.runs.enqueue(run_spec(host="there")).id

    ids = run_concurrently([work] * 10)
    with corral.open(empty_url) as store:
        assert sorted(run.id for run in store.runs.list().items) == sorted(ids)
        newest = len(list((Path(corral.__file__).parent / "migrations").glob("*.sql")))
        assert store.db.schema_version() == newest


def test_2_every_concept_is_tested_on_both_engines(store: Corral, engine: str) -> None:
    assert store.db.engine == engine
    assert engine in ("sqlite", "postgres")


# -- 3, 4: agents ------------------------------------------------------------------------------


def test_3_granting_a_tool_twice_is_idempotent(store: Corral) -> None:
    store.agents.create("ada")
    for _ in range(2):
        store.agents.grant("ada", "Write")
    assert [grant.tool for grant in store.agents.grants("ada").items] == ["Write"]
    assert list_events(store).count("agent.grant") == 1


def test_3_denied_tool_is_disabled_in_the_agent_command(store: Corral) -> None:
    store.agents.create("ada")
    store.agents.grant("ada", "Bash", allow=False)
    assert not store.agents.allows("ada", "Bash")
    denied = tuple(grant.tool for grant in store.agents.grants("ada").items if not grant.allowed)
    start = get_provider("claude").build_command(LaunchRequest(prompt="x", deny=denied))
    assert "--disallowedTools=Bash" in start.args


def test_3_request_for_a_denied_tool_is_refused_and_logged(home: Home) -> None:
    with home.store() as store:
        store.agents.create("ada", provider="scripted")
        store.agents.grant("ada", "execute", allow=False)
    # The denial of the agent overrides `--yes all`.
    run = home.start_agent("ada", "ask May I run it?; say done", "--acp", "--yes", "all")
    over = home.wait_for_end(run.id)
    assert over.state is RunState.COMPLETED
    with home.store() as store:
        texts = [turn.content or "" for turn in store.sessions.turns(over.session_id or "").items]
    assert any("No answer." in text for text in texts), texts
    assert any("denied" in line.lower() for line in home.log(over)), home.log(over)


def test_4_old_run_keeps_its_version_of_the_instructions(store: Corral) -> None:
    ada = store.agents.create("ada", instructions="be kind")
    run = ended(store, agent_id=ada.id, agent_version=ada.version)
    new = store.agents.edit("ada", instructions="be quick")
    assert new.version == 2
    old = store.runs.get(run.id)
    assert old.agent_id is not None
    assert old.agent_version is not None
    assert store.agents.version(old.agent_id, old.agent_version).instructions == "be kind"
    assert store.agents.version(old.agent_id, 2).instructions == "be quick"


def test_4_run_uses_the_agent_version_at_its_request(store: Corral, tmp_path: Path) -> None:
    store.agents.create("ada", provider="scripted", instructions="be kind")
    run = store.runs.start(agent="ada", prompt="hello", project=str(tmp_path))
    store.agents.edit("ada", instructions="be quick")
    assert (run.agent_version, store.agents.get("ada").version) == (1, 2)
    assert store.runs.get(run.id).agent_version == 1


# -- 5, 6: owner of a run ----------------------------------------------------------------------


def test_5_one_of_several_threads_acquires_a_queued_run(
    store: Corral,
) -> None:
    for _ in range(5):
        run = queued(store)
        assert run.started_at is None
        calls: list[Callable[[], object]] = [
            lambda n=n, run=run: store.internal.runs.acquire(run.id, held(n)) for n in range(4)
        ]
        racers = race(calls)
        assert [racer.error for racer in racers].count(None) == 1
        for racer in racers:
            assert racer.error is None or isinstance(racer.error, Conflict)
        acquired = store.runs.get(run.id)
        assert (acquired.state, acquired.attempts, acquired.fence) == (RunState.STARTING, 1, 1)
        assert list_events(store, run.id).count("run.start") == 1


def test_5_one_of_several_processes_acquires_a_queued_run(url: str) -> None:
    with corral.open(url) as store:
        ids = [queued(store).id for _ in range(10)]

    def take(number: int) -> Callable[[], list[str]]:
        def work() -> list[str]:
            acquired = []
            with corral.open(url) as store:
                for id in ids:
                    try:
                        acquired.append(store.internal.runs.acquire(id, held(number)).id)
                    except Conflict:
                        continue
            return acquired

        return work

    acquired = run_concurrently([take(number) for number in range(4)])
    assert sorted(id for ids_of_process in acquired for id in ids_of_process) == sorted(ids)


@pytest.mark.parametrize(("max_restarts", "state"), [(1, "queued"), (0, "interrupted")])
def test_6_run_with_an_expired_lease_is_requeued_or_interrupted(
    store: Corral,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    max_restarts: int,
    state: str,
) -> None:
    without_supervisors(monkeypatch)
    silent = running(store, max_restarts=max_restarts)
    clock.advance(HOUR)
    (recovered,) = store.runs.recover()
    assert (recovered.state, recovered.reason) == (state, "lease expired")
    verb = {"queued": "run.requeue", "interrupted": "run.interrupt"}[state]
    assert list_events(store, silent.id)[-1] == verb or verb in list_events(store, silent.id)
    if state == "queued":
        store.internal.runs.acquire(silent.id, held(2))
        with raises_without_change(store, Held):
            store.internal.runs.record_end(silent, ExitStatus(exit_code=0))
    else:
        with unchanged(store):
            assert store.internal.runs.record_end(silent, ExitStatus(exit_code=0)).exit_code is None
    with raises_without_change(store, Held):
        store.internal.runs.heartbeat(silent, output_bytes=0)


# -- 7: hand-off -------------------------------------------------------------------------------


def test_7_handoff_gives_the_last_five_turns_and_the_note(store: Corral) -> None:
    for name in ("ada", "ben"):
        store.agents.create(name)
    session = store.sessions.open("ada")
    for n in range(1, 21):
        store.sessions.append(session.id, "user", f"turn {n}")
    store.sessions.handoff(session.id, "ben", "last", "mind the tests", last=5)
    (handoff,) = store.sessions.handoffs(session.id).items
    assert handoff.to_agent_id == store.agents.get("ben").id
    context = store.sessions.context(session.id)
    assert [turn.content for turn in context.turns] == [f"turn {n}" for n in range(16, 21)]
    assert context.note == "mind the tests"
    history = store.sessions.turns(session.id, limit=100).items
    assert [turn.number for turn in history] == list(range(1, 21))


# -- 8: costs ----------------------------------------------------------------------------------


def test_8_usage_and_cost_are_exact_and_unknown_cost_is_null(
    store: Corral,
) -> None:
    run = running(store)
    report = UsageFact(model="m", input=1_000, output=500, cache_read=200, cost_micros=10_543)
    charge = store.charges.add(report, run_id=run.id)
    assert charge is not None
    store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    (stored,) = store.charges.list(run=run.id).items
    assert (stored.input, stored.output, stored.cache_read, stored.cost_micros) == (
        1_000,
        500,
        200,
        10_543,
    )
    assert store.charges.total(f"run:{run.id}").cost_micros == 10_543
    other = running(store)
    store.charges.add(UsageFact(model="unknown-model", input=1_000), run_id=other.id)
    over = store.internal.runs.record_end(other, ExitStatus(exit_code=0))
    assert (over.cost_micros, store.charges.total(f"run:{other.id}").cost_micros) == (None, None)


# -- 9: cancelling -----------------------------------------------------------------------------


def test_9_cancelled_run_is_stopping_until_all_processes_ended(
    home: Home,
) -> None:
    # It forks a child into a new session, and both ignore signals.
    script = (
        "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &"
        " touch started; while :; do sleep 1; done"
    )
    run = home.start_detached("sh", "-c", script, options=("--grace-period", "1s"))
    wait_until((home.work / "started").exists, "the program started")
    wait_until(lambda: len(home.processes_of(run)) >= 3, "the child started")
    with home.store() as store:
        assert store.runs.stop(run.id).state is RunState.STOPPING
    over = home.wait_for_end(run.id)
    assert (over.state, over.signal, over.exit_code) == (RunState.CANCELLED, 9, None)
    assert not home.processes_of(run)
    events = home.events(over)
    assert events.index("stop") < events.index("cancel")
    assert "complete" not in events


def test_9_run_that_succeeds_while_stopping_is_cancelled(
    store: Corral,
) -> None:
    for how in (ExitStatus(exit_code=0), ExitStatus(exit_code=0, finished_work=True)):
        run = running(store)
        store.internal.runs.request_stop(run.id)
        assert store.internal.runs.record_end(run, how).state is RunState.CANCELLED


# -- 10: copies --------------------------------------------------------------------------------


def test_10_backup_restores_runs_with_all_their_data(
    store: Corral, url: str, tmp_path: Path
) -> None:
    store.budgets.set("all", 1_000)
    over = ended(store, ExitStatus(exit_code=3), name="over", prompt="hello", budget_micros=10)
    live = running(store, name="live", budget_micros=20)
    store.internal.runs.set_attention(live, Attention.STUCK)
    queued(store, args=["a", "b"])
    before = contents(store)
    store.db.backup(tmp_path / "copy")
    store.runs.delete(over.id)
    store.internal.runs.record_end(live, ExitStatus(exit_code=0))
    store.db.restore(tmp_path / "copy")
    after = contents(store)
    for table in ("launches", "resource_samples", "budget_reservations", "outputs"):
        assert after[table] == before[table], table
    assert [row[:5] for row in after["runs"]] == [row[:5] for row in before["runs"]]
    with pytest.raises(Held):  # a restore fences off the old supervisor
        store.internal.runs.heartbeat(live, output_bytes=0)
    assert rows(store, "SELECT count(*) FROM runs") == [(3,)]
    assert (
        store.internal.runs.record_end(store.runs.get(live.id), ExitStatus(exit_code=0)).state
        is RunState.COMPLETED
    )
