"""Several machines on one PostgreSQL: who takes what, and what becomes of it when one is lost."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.db.postgres_pool import MAX_SERVER_WAIT
from corral.db.statement import Statement
from corral.domain.runs.model import Run
from tests.support.daemon_nodes import Machine
from tests.support.home import is_alive, wait_until
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy

pytestmark = pytest.mark.parametrize("engine", ["postgres"])


class Two:
    """Two machines, both up.

    Their leases are long: a machine that is only slow keeps them. Those of a machine that is gone
    are ended by `expire`.
    """

    def __init__(self, machine: Callable[..., Machine], at: str | None = None) -> None:
        self.one, self.two = machine("one", at), machine("two")
        self.one.up("--label", "gpu")
        self.two.up("--label", "gpu", "--label", "big")

    def ask(self, *command: str, **wishes: Any) -> Run:
        """A run that any of them may take; started again twice where its machine is lost."""
        with self.two.store() as store:
            return store.runs.start(
                command=command, project=str(self.two.work), max_restarts=2, **wishes
            )

    def on(self, id: str, name: str, *, without: str | None = None) -> Run:
        """The run, once it runs on a machine; the leases of the one `without` are over."""

        def look() -> Run | None:
            if without is not None:
                self.expire(without)
            run = self.two.get(id)
            return run if (run.host, run.state) == (name, "running") else None

        return wait_until(look, f"{id} runs on {name}")

    def expire(self, name: str, *tables: str) -> None:
        """End the leases of a machine that is silent, as if their time had passed.

        Tests repeat this while they wait: its last heartbeat may still be on the way.
        """
        owned = {
            "nodes": "name = :name AND state = 'up'",
            "leaders": "owner LIKE 'daemon:' || :name || ':%'",
            "runs": "host = :name AND lease_until IS NOT NULL",
        }
        with self.two.store() as store, store.transaction() as tx:
            for table in tables or owned:
                sql = f"UPDATE {table} SET lease_until = 1 WHERE lease_until > 1 AND {owned[table]}"
                tx.run(Statement(sql), name=name)
            tx.emit("project", "touch", "prj_x")  # wakes the loops

    def state_of(self, name: str) -> str:
        with self.two.store() as store:
            nodes = {node.name: node.state for node in store.nodes.list().items}
        return str(nodes[name])


@pytest.fixture
def both(machine: Callable[..., Machine]) -> Two:
    return Two(machine)


def test_run_is_placed_on_a_suitable_machine(both: Two, tmp_path: Path) -> None:
    """By its labels, by the name of the machine, and by the folder of its project."""
    nobody = both.ask("sleep", "600", labels=["tape"])
    big = both.ask("sleep", "600", labels=["big", "gpu"])
    assert both.on(big.id, "two").node_id is not None
    named = both.ask("sleep", "600", host="one")
    both.on(named.id, "one")
    with both.two.store() as store:
        # Both see the same disk here; a folder that does not exist stands for one elsewhere.
        missing = store.runs.start(
            command=["pwd"], project=str(tmp_path / "nowhere"), host="any", max_restarts=0
        )
        here = both.ask("pwd", host="any")
        assert store.runs.wait(here.id, timeout_ms=60_000).state == "completed"
        for each in (missing, nobody):
            assert store.runs.get(each.id).state == "queued", "it waits for a machine"
    said = both.two.corral("run", "--host", "one", "--", "sh", "-c", "echo built; exit 7")
    assert (said.returncode, said.stdout) == (7, b"built\n"), said.stderr


def test_runs_are_spread_over_free_slots(machine: Callable[..., Machine]) -> None:
    one, two = machine("one"), machine("two")
    one.up("--slots", "2")
    two.up("--slots", "2")
    with two.store() as store:
        asked = [
            store.runs.start(command=["sleep", "600"], project=str(two.work), host="any")
            for _ in range(5)
        ]

        def settled() -> list[str] | None:
            hosts = [run.host for run in map(store.runs.get, [a.id for a in asked]) if run.host]
            return hosts if len(hosts) == 4 else None

        assert sorted(wait_until(settled, "four run")) == ["one", "one", "two", "two"]
        (waiting,) = store.runs.list(state="queued").items
        going = next(run for run in map(store.runs.get, [a.id for a in asked]) if run.host == "one")
        store.runs.stop(going.id)
        wait_until(lambda: store.runs.get(waiting.id).host == "one", "the fifth follows")


def test_loops_fail_over_and_the_run_of_a_dead_daemon_continues(both: Two) -> None:
    leading = both.one if both.one.loop("scheduler")["state"] == "works" else both.two
    other = both.two if leading is both.one else both.one
    assert other.loop("scheduler")["state"] == "waits"
    assert f":{leading.name}:" in other.loop("scheduler")["leader"]
    assert other.loop("dispatcher")["state"] == "works"
    with other.store() as store:
        store.settings.set("runs.lease_ms", 3_000)  # its supervisor beats often
    run = both.ask("sleep", "600", host=leading.name)
    first = both.on(run.id, leading.name)
    leading.signal(signal.SIGKILL)
    both.two = other

    def takes_over() -> bool:
        both.expire(leading.name, "nodes", "leaders")
        return bool(other.loop("scheduler")["state"] == "works")

    wait_until(takes_over, "the other one leads")
    wait_until(lambda: both.state_of(leading.name) == "lost", "the node is lost")
    with other.store() as store:
        store.timers.set("agent:ada", "hello", delay_ms=5_000)
        wait_until(lambda: store.mail.list(mailbox="agent:ada").items, "its letter is put")
        renewed = store.runs.get(run.id).seen_at
        wait_until(lambda: store.runs.get(run.id).seen_at != renewed, "its supervisor goes on")
        now = store.runs.get(run.id)
    assert (now.pid, now.host, now.attempts) == (first.pid, leading.name, 1)


def test_run_of_a_powered_off_machine_continues_elsewhere(both: Two) -> None:
    with both.two.store() as store:
        store.agents.create("ada", command="sh -c 'cat; echo; echo that was all; sleep 600'")
        run = store.runs.start(
            agent="ada",
            prompt="count the stars",
            project=str(both.two.work),
            labels=["gpu"],
            max_restarts=1,
        )
    first = wait_until(lambda: (r := both.two.get(run.id)).state == "running" and r, "it runs")
    gone, left = (both.one, both.two) if first.host == "one" else (both.two, both.one)
    gone.lose_power()
    both.two = left  # who can still be asked
    again = both.on(run.id, left.name, without=gone.name)
    assert again.attempts == 2
    assert again.fence > first.fence
    with left.environment():
        told = wait_until(
            lambda: b"that was all" in (out := left.output_so_far(again)) and out, "it is told"
        )
    assert b"This conversation started earlier" in told
    assert b"    count the stars\n[corral:" in told  # quoted, not at the beginning of a line
    wait_until(lambda: both.state_of(gone.name) == "lost", "it is said to be lost")
    gone.up()
    assert both.state_of(gone.name) == "up"
    assert left.get(run.id).host == left.name, "it stays where it went"


@pytest.fixture
def short_idle_limit(url: str, postgres_server: PostgresServer) -> None:
    """The server releases the locks of a client that is stopped inside a transaction after 2 s."""
    database = url.rpartition("/")[2]
    postgres_server.run_sql(
        f"ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '2s'"
    )


def test_paused_machine_rejoins_and_its_old_run_is_fenced_off(
    short_idle_limit: None, both: Two
) -> None:
    run = both.ask("sleep", "600", labels=["gpu"])
    first = wait_until(lambda: (r := both.two.get(run.id)).state == "running" and r, "it runs")
    stopped, left = (both.one, both.two) if first.host == "one" else (both.two, both.one)
    stopped.signal_all(signal.SIGSTOP)
    both.two = left
    try:
        following = both.on(run.id, left.name, without=stopped.name)
        assert both.state_of(stopped.name) == "lost"
    finally:
        stopped.signal_all(signal.SIGCONT)
    assert first.pid is not None
    old = first.pid
    wait_until(lambda: not is_alive(old), "the old attempt is ended")
    wait_until(lambda: both.state_of(stopped.name) == "up", "it joins again")
    now = left.get(run.id)
    assert (now.state, now.host) == ("running", left.name), (
        "what the old supervisor said is refused"
    )
    assert (now.pid, now.attempts) == (following.pid, following.attempts)


@pytest.fixture
def cut_off(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


def test_partitioned_machine_stops_its_runs(
    machine: Callable[..., Machine], url: str, postgres_server: PostgresServer, cut_off: Proxy
) -> None:
    by_proxy = url.replace(f":{postgres_server.port}/", f":{cut_off.port}/")
    both = Two(machine, at=by_proxy)
    both.two.corral("down")
    with both.two.store() as store:  # no other machine takes the runs before the cut
        store.settings.set("runs.lease_ms", 3_000)
    run = both.ask("sleep", "600", labels=["gpu"])
    with both.two.store() as store:  # one that speaks, and of whom much is to be kept meanwhile
        prompt = "; ".join(["say a word", "sleep 0.2"] * 500)
        talks = store.runs.start(
            agent="scripted",
            prompt=prompt,
            project=str(both.two.work),
            max_restarts=2,
            labels=["gpu"],
        )
    bound = both.ask("sleep", "600", host="one")
    first, stays = both.on(run.id, "one"), both.on(bound.id, "one")
    second = both.on(talks.id, "one")
    both.two.up("--label", "gpu")
    cut_off.close()
    # By its lease of 3 s, and not when the patience with a server that went away has ended.
    for each in (first, second):
        old = each.pid
        assert old is not None
        wait_until(
            lambda old=old: not is_alive(old),
            "it is ended where nobody can be asked",
            MAX_SERVER_WAIT,
        )
    assert stays.pid is not None
    assert is_alive(stays.pid), "what no other machine may have goes on"
    both.on(run.id, "two")
    assert is_alive(both.one.pid), "the daemon waits for the store"
