"""Several machines on one PostgreSQL store: placement, failover, power loss and partitions."""

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


class Machines:
    """Two machines with running daemons.

    Their leases are long, so that a slow machine keeps them. `expire` ends the leases of a machine
    that is gone.
    """

    def __init__(self, new_machine: Callable[..., Machine], at: str | None = None) -> None:
        self.one, self.two = new_machine("one", at), new_machine("two")
        self.one.up("--label", "gpu")
        self.two.up("--label", "gpu", "--label", "big")

    def request(self, *command: str, **options: Any) -> Run:
        """Queue a run for any machine, with two restarts."""
        with self.two.store() as store:
            return store.runs.start(
                command=command, project=str(self.two.work), max_restarts=2, **options
            )

    def wait_for_run(self, id: str, name: str, *, without: str | None = None) -> Run:
        """Wait until a run is on a machine; expire the leases of the machine `without`."""

        def find_run() -> Run | None:
            if without is not None:
                self.expire(without)
            run = self.two.get(id)
            return run if (run.host, run.state) == (name, "running") else None

        return wait_until(find_run, f"{id} runs on {name}")

    def expire(self, name: str, *tables: str) -> None:
        """Expire the leases of a machine that is gone.

        Tests repeat this while they wait, because a last heartbeat may still arrive.
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
def machines(new_machine: Callable[..., Machine]) -> Machines:
    return Machines(new_machine)


def test_run_is_placed_on_a_suitable_machine(machines: Machines, tmp_path: Path) -> None:
    """By labels, by the name of the machine, and by the folder of the project."""
    unsuitable = machines.request("sleep", "600", labels=["tape"])
    big = machines.request("sleep", "600", labels=["big", "gpu"])
    assert machines.wait_for_run(big.id, "two").node_id is not None
    named = machines.request("sleep", "600", host="one")
    machines.wait_for_run(named.id, "one")
    with machines.two.store() as store:
        # Both machines share a disk, so a missing folder stands for one on another machine.
        missing = store.runs.start(
            command=["pwd"], project=str(tmp_path / "nowhere"), host="any", max_restarts=0
        )
        existing = machines.request("pwd", host="any")
        assert store.runs.wait(existing.id, timeout_ms=60_000).state == "completed"
        for queued in (missing, unsuitable):
            assert store.runs.get(queued.id).state == "queued", "no machine is suitable"
    result = machines.two.corral("run", "--host", "one", "--", "sh", "-c", "echo built; exit 7")
    assert (result.returncode, result.stdout) == (7, b"built\n"), result.stderr


def test_runs_are_spread_over_free_slots(new_machine: Callable[..., Machine]) -> None:
    first, second = new_machine("one"), new_machine("two")
    first.up("--slots", "2")
    second.up("--slots", "2")
    with second.store() as store:
        requested = [
            store.runs.start(command=["sleep", "600"], project=str(second.work), host="any")
            for _ in range(5)
        ]

        def list_hosts() -> list[str] | None:
            hosts = [run.host for run in map(store.runs.get, [a.id for a in requested]) if run.host]
            return hosts if len(hosts) == 4 else None

        assert sorted(wait_until(list_hosts, "four runs are placed")) == [
            "one",
            "one",
            "two",
            "two",
        ]
        (waiting,) = store.runs.list(state="queued").items
        stopped = next(
            run for run in map(store.runs.get, [a.id for a in requested]) if run.host == "one"
        )
        store.runs.stop(stopped.id)
        wait_until(lambda: store.runs.get(waiting.id).host == "one", "the fifth run is placed")


def test_loops_fail_over_and_the_run_of_a_dead_daemon_continues(machines: Machines) -> None:
    leader = machines.one if machines.one.loop("scheduler")["state"] == "works" else machines.two
    other = machines.two if leader is machines.one else machines.one
    assert other.loop("scheduler")["state"] == "waits"
    assert f":{leader.name}:" in other.loop("scheduler")["leader"]
    assert other.loop("dispatcher")["state"] == "works"
    with other.store() as store:
        store.settings.set("runs.lease_ms", 3_000)  # short heartbeat interval of the supervisor
    run = machines.request("sleep", "600", host=leader.name)
    first = machines.wait_for_run(run.id, leader.name)
    leader.signal(signal.SIGKILL)
    machines.two = other

    def has_taken_over() -> bool:
        machines.expire(leader.name, "nodes", "leaders")
        return bool(other.loop("scheduler")["state"] == "works")

    wait_until(has_taken_over, "the other daemon leads")
    wait_until(lambda: machines.state_of(leader.name) == "lost", "the node is lost")
    with other.store() as store:
        store.timers.set("agent:ada", "hello", delay_ms=5_000)
        wait_until(lambda: store.mail.list(mailbox="agent:ada").items, "the letter is put")
        renewed = store.runs.get(run.id).seen_at
        wait_until(lambda: store.runs.get(run.id).seen_at != renewed, "the supervisor continues")
        current = store.runs.get(run.id)
    assert (current.pid, current.host, current.attempts) == (first.pid, leader.name, 1)


def test_run_of_a_powered_off_machine_continues_elsewhere(machines: Machines) -> None:
    with machines.two.store() as store:
        store.agents.create("ada", command="sh -c 'cat; echo; echo end of output; sleep 600'")
        run = store.runs.start(
            agent="ada",
            prompt="count the files",
            project=str(machines.two.work),
            labels=["gpu"],
            max_restarts=1,
        )
    first = wait_until(
        lambda: (r := machines.two.get(run.id)).state == "running" and r, "the run started"
    )
    lost, remaining = (
        (machines.one, machines.two) if first.host == "one" else (machines.two, machines.one)
    )
    lost.lose_power()
    machines.two = remaining  # the remaining machine
    restarted = machines.wait_for_run(run.id, remaining.name, without=lost.name)
    assert restarted.attempts == 2
    assert restarted.fence > first.fence
    with remaining.environment():
        output = wait_until(
            lambda: b"end of output" in (out := remaining.output_so_far(restarted)) and out,
            "the prompt was printed",
        )
    assert b"This conversation started earlier" in output
    assert b"    count the files\n[corral:" in output  # quoted, not at the start of a line
    wait_until(lambda: machines.state_of(lost.name) == "lost", "the node is marked lost")
    lost.up()
    assert machines.state_of(lost.name) == "up"
    assert remaining.get(run.id).host == remaining.name, "the run stays on the other machine"


@pytest.fixture
def short_idle_limit(url: str, postgres_server: PostgresServer) -> None:
    """The server releases the locks of a client that is stopped inside a transaction after 2 s."""
    database = url.rpartition("/")[2]
    postgres_server.run_sql(
        f"ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '2s'"
    )


def test_paused_machine_rejoins_and_its_old_run_is_fenced_off(
    short_idle_limit: None, machines: Machines
) -> None:
    run = machines.request("sleep", "600", labels=["gpu"])
    first = wait_until(
        lambda: (r := machines.two.get(run.id)).state == "running" and r, "the run started"
    )
    paused, remaining = (
        (machines.one, machines.two) if first.host == "one" else (machines.two, machines.one)
    )
    paused.signal_all(signal.SIGSTOP)
    machines.two = remaining
    try:
        following = machines.wait_for_run(run.id, remaining.name, without=paused.name)
        assert machines.state_of(paused.name) == "lost"
    finally:
        paused.signal_all(signal.SIGCONT)
    assert first.pid is not None
    old = first.pid
    wait_until(lambda: not is_alive(old), "the old attempt is ended")
    wait_until(lambda: machines.state_of(paused.name) == "up", "the node joined again")
    now = remaining.get(run.id)
    assert (now.state, now.host) == ("running", remaining.name), (
        "writes of the old supervisor are rejected"
    )
    assert (now.pid, now.attempts) == (following.pid, following.attempts)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


def test_partitioned_machine_stops_its_runs(
    new_machine: Callable[..., Machine], url: str, postgres_server: PostgresServer, proxy: Proxy
) -> None:
    proxy_url = url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
    machines = Machines(new_machine, at=proxy_url)
    machines.two.corral("down")
    with machines.two.store() as store:  # no other machine takes the runs before the partition
        store.settings.set("runs.lease_ms", 3_000)
    run = machines.request("sleep", "600", labels=["gpu"])
    with (
        machines.two.store() as store
    ):  # an agent whose output must be buffered during the partition
        prompt = "; ".join(["say something", "sleep 0.2"] * 500)
        talking = store.runs.start(
            agent="scripted",
            prompt=prompt,
            project=str(machines.two.work),
            max_restarts=2,
            labels=["gpu"],
        )
    bound = machines.request("sleep", "600", host="one")
    first, bound_run = machines.wait_for_run(run.id, "one"), machines.wait_for_run(bound.id, "one")
    second = machines.wait_for_run(talking.id, "one")
    machines.two.up("--label", "gpu")
    proxy.close()
    # They end when the lease of 3 s expires, before the store timeout.
    for stopped in (first, second):
        old = stopped.pid
        assert old is not None
        wait_until(
            lambda old=old: not is_alive(old),
            "the run is ended without the store",
            MAX_SERVER_WAIT,
        )
    assert bound_run.pid is not None
    assert is_alive(bound_run.pid), "a run bound to this machine continues"
    machines.wait_for_run(run.id, "two")
    assert is_alive(machines.one.pid), "the daemon waits for the store"
