"""Locks over HTTP: in the agent's own name, and never longer than the server waits."""

from pathlib import Path

from tests.support.http_server import HttpServer


def test_agent_token_locks_in_its_own_name_and_breaks_no_other_lock(
    http_server: HttpServer, tmp_path: Path
) -> None:
    store = http_server.store
    project = store.projects.register(tmp_path)
    for name in ("ada", "ben"):
        store.agents.create(name)
    held = store.locks.acquire(project.id, "a", "ben")
    with http_server.client(store.tokens.create("t", scope="agent:ada").value) as client:
        want = {"project": project.id, "path": "b", "agent": "ben", "run": "run_1"}
        result = client.post("/api/locks/acquire", json=want).json()
        assert (result["owner"], result["run_id"]) == ("agent:ada", None)
        refused = client.post("/api/locks/acquire", json=want | {"path": "a"})
        assert refused.status_code == 423
        assert "agent:ben" in refused.json()["error"]["message"]
        named = {"agent": "ben"}
        assert client.post(f"/api/locks/{held.id}/release", json=named).status_code == 423
        assert client.post(f"/api/locks/{held.id}/renew", json=named).status_code == 423
        taken = client.post(f"/api/locks/{held.id}/revoke", json={"reason": "mine"})
        assert taken.status_code == 403
        waiting = client.post("/api/locks/request", json=want | {"path": "a"}).json()
        assert waiting["state"] == "waiting"
        slow = client.get(f"/api/locks/{waiting['id']}/wait", params={"timeout_ms": 10})
        assert slow.status_code == 403
        assert client.post("/api/locks/acquire", json=want | {"wait": True}).status_code == 400
        assert len(client.get("/api/locks").json()["items"]) == 3
        assert client.post("/api/locks/install", json={"folder": "/"}).status_code in (403, 404)
    store.locks.release(held)
    assert store.locks.get(waiting["id"]).state == "held"
