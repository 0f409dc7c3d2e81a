"""Lock requests over HTTP with an agent's token."""

from pathlib import Path

from tests.support.http_server import HttpServer


def test_agent_token_locks_in_its_own_name_and_breaks_no_other_lock(
    http_server: HttpServer, tmp_path: Path
) -> None:
    store = http_server.store
    project = store.projects.register(tmp_path)
    for name in ("ada", "ben"):
        store.agents.create(name)
    foreign_lock = store.locks.acquire(project.id, "a", "ben")
    with http_server.client(store.tokens.create("t", scope="agent:ada").value) as client:
        payload = {"project": project.id, "path": "b", "agent": "ben", "run": "run_1"}
        result = client.post("/api/locks/acquire", json=payload).json()
        assert (result["owner"], result["run_id"]) == ("agent:ada", None)
        conflict = client.post("/api/locks/acquire", json=payload | {"path": "a"})
        assert conflict.status_code == 423
        assert "agent:ben" in conflict.json()["error"]["message"]
        identity = {"agent": "ben"}
        assert (
            client.post(f"/api/locks/{foreign_lock.id}/release", json=identity).status_code == 423
        )
        assert client.post(f"/api/locks/{foreign_lock.id}/renew", json=identity).status_code == 423
        revoked = client.post(f"/api/locks/{foreign_lock.id}/revoke", json={"reason": "mine"})
        assert revoked.status_code == 403
        waiting = client.post("/api/locks/request", json=payload | {"path": "a"}).json()
        assert waiting["state"] == "waiting"
        slow = client.post(f"/api/locks/{waiting['id']}/wait", json={"timeout_ms": 10})
        assert slow.status_code == 403
        assert client.post("/api/locks/acquire", json=payload | {"wait": True}).status_code == 400
        assert len(client.get("/api/locks").json()["items"]) == 3
        assert client.post("/api/locks/install", json={"folder": "/"}).status_code in (403, 404)
    store.locks.release(foreign_lock)
    assert store.locks.get(waiting["id"]).state == "held"
