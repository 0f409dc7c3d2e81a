"""Requests of a hostile agent with its own token are rejected or have no effect."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corral.api import Corral
from corral.domain.projects.model import Project
from corral.http.middleware import body_limits, concurrency
from corral.kernel.errors import NotYet
from corral.services.runs import lifecycle
from tests.http.test_agent_identity import is_forbidden
from tests.support.home import wait_until
from tests.support.http_server import HttpServer
from tests.support.race_factory import RaceFactory
from tests.support.run_factories import add_run, running
from tests.support.store import list_events


@pytest.fixture
def eve(http_server: HttpServer) -> Iterator[httpx.Client]:
    """A client with the token of the agent eve; ada is an honest agent."""
    for name in ("ada", "eve"):
        http_server.store.agents.create(name)
    with http_server.client(
        http_server.store.tokens.create("e", scope="agent:eve").value
    ) as client:
        yield client


def create_project(store: Corral, folder: Path) -> Project:
    folder.mkdir()
    return store.projects.register(folder)


def test_task_cannot_be_taken_from_its_agent_by_delegation(
    eve: httpx.Client, store: Corral, tmp_path: Path
) -> None:
    project = create_project(store, tmp_path / "p")
    task = store.tasks.add(project.id, "build")
    store.tasks.claim(project.id, "ada")
    payload = {"to": "ada", "text": "x", "task_id": task.id}
    assert eve.post("/api/delegations/delegate", json=payload).status_code == 400
    assert is_forbidden(eve.post(f"/api/tasks/{task.id}/delegate", json={"to": "ada"}))
    delegation = eve.post("/api/delegations/delegate", json={"to": "ada", "text": "x"}).json()
    assert eve.post(f"/api/delegations/{delegation['id']}/cancel").status_code == 200
    assert store.tasks.get(task.id).state == "running"


def test_named_run_must_be_the_callers_own(
    eve: httpx.Client, store: Corral, tmp_path: Path
) -> None:
    project = create_project(store, tmp_path / "p")
    store.tasks.add(project.id, "build")
    run = add_run(store, "running", agent_id=store.agents.get("ada").id)
    claim = {"project": project.id, "agent": "eve", "run": run}
    assert is_forbidden(eve.post("/api/tasks/claim", json=claim))
    values = {"summary": "x", "agent": "eve", "run": run}
    assert is_forbidden(eve.post("/api/progress/report", json=values))
    assert is_forbidden(eve.post("/api/plans/set", json={"steps": ["x"], "run": run}))
    assert store.tasks.get("build").state == "ready"
    own_run = add_run(store, "running", agent_id=store.agents.get("eve").id)
    assert eve.post("/api/tasks/claim", json=claim | {"run": own_run}).json()["run_id"] == own_run


def test_place_in_a_lock_queue_is_kept_by_its_owner_only(
    eve: httpx.Client, store: Corral, tmp_path: Path
) -> None:
    project = create_project(store, tmp_path / "p")
    store.locks.acquire(project.id, "src/", "user:root")
    queued = store.locks.request(project.id, "src/", "ada", wait_ms=5_000)
    assert is_forbidden(eve.post(f"/api/locks/{queued.id}/wait", json={"timeout_ms": 0}))
    assert store.locks.get(queued.id).lease_until == queued.lease_until
    own_session = store.sessions.open("eve", project=project.id)
    for owner in ("agent:eve", f"session:{own_session.id}"):
        lock = store.locks.request(project.id, f"{own_session.id}/{owner[:5]}", owner)
        assert eve.post(f"/api/locks/{lock.id}/wait", json={"timeout_ms": 0}).status_code == 200


def test_operation_without_a_rule_discloses_no_ids(
    eve: httpx.Client, store: Corral, tmp_path: Path
) -> None:
    project = create_project(store, tmp_path / "p")
    for id in (project.id, "prj_00000000000000000000000000"):
        payload = {"prompt": "x", "agents": ["eve"], "project": id}
        assert is_forbidden(eve.post("/api/races/start", json=payload))


def test_project_token_reaches_no_record_of_another_project_by_id(
    http_server: HttpServer, store: Corral, tmp_path: Path
) -> None:
    for name in ("ada", "eve"):
        store.agents.create(name)
    own, other = create_project(store, tmp_path / "own"), create_project(store, tmp_path / "other")
    own_task = store.tasks.add(own.id, "mine", agent="eve")
    task = store.tasks.add(other.id, "build", agent="eve")
    lock = store.locks.acquire(other.id, "src/", "eve")
    group = store.groups.create("talk", members=["agent:eve"], project=other.id)
    store.plans.set(["x"], agent="ada", project_id=other.id)
    work = store.delegations.delegate("ada", "x", project_id=other.id)
    race = RaceFactory(store, tmp_path).start("ada")
    session = store.sessions.open("ada", project=other.id)
    token = store.tokens.create("e", scope="agent:eve", project=own.id).value
    with http_server.client(token) as eve:
        for path in (
            f"/api/tasks/{task.id}",
            f"/api/locks/{lock.id}",
            f"/api/groups/{group.id}",
            f"/api/groups/{group.id}/read",
            f"/api/delegations/{work.id}",
            "/api/plans/ada",
            f"/api/races/{race.id}",
        ):
            assert is_forbidden(eve.get(path)), path
        for path, payload in (
            (f"/api/tasks/{task.id}/cancel", {}),
            (f"/api/tasks/{task.id}/edit", {"title": "x"}),
            (f"/api/locks/{lock.id}/release", {}),
            (f"/api/groups/{group.id}/post", {"text": "x"}),
            ("/api/mail/put", {"mailbox": f"session:{session.id}", "body": "x"}),
        ):
            assert is_forbidden(eve.post(path, json=payload)), path
        # A key is looked up only in the token's own project.
        assert eve.post(f"/api/tasks/{task.key}/cancel", json={}).status_code == 404
        assert [item["id"] for item in eve.get("/api/tasks").json()["items"]] == [own_task.id]
        assert eve.get("/api/locks").json()["items"] == []
        assert eve.get("/api/delegations").json()["items"] == []
        assert eve.get("/api/sessions").json()["items"] == []
        assert eve.get("/api/tasks/mine").json()["id"] == own_task.id
        assert eve.post("/api/notes/add", json={"text": "x"}).json()["scope"] == f"project:{own.id}"
        result = eve.post("/api/groups/broadcast", json={"text": "x"}).json()
        assert store.groups.get(result["group_id"]).project_id == own.id
    assert store.tasks.get(task.id).state == "ready"


def test_project_token_reaches_no_session_mailbox_of_another_project(
    http_server: HttpServer, store: Corral, tmp_path: Path
) -> None:
    store.agents.create("ada")
    own, other = create_project(store, tmp_path / "own"), create_project(store, tmp_path / "other")
    token = store.tokens.create("a", scope="agent:ada", project=own.id).value
    with http_server.client(token) as ada:
        for project, is_own in ((own.id, True), (other.id, False)):
            mailbox = f"session:{store.sessions.open('ada', project=project).id}"
            letter = store.mail.put(mailbox, "x")
            payload = {"mailbox": mailbox, "owner": "me"}
            for response in (
                ada.get(f"/api/mail/{letter.id}"),
                ada.post("/api/mail/claim", json=payload),
            ):
                assert (response.status_code == 200) if is_own else is_forbidden(response)
    assert store.mail.get(letter.id).state == "waiting"


def test_empty_letter_id_is_rejected(eve: httpx.Client) -> None:
    payloads = {
        "renew": {},
        "ack": {},
        "ack_and_claim": {"owner": "me"},
        "fail": {"error": "x"},
        "refuse": {"reason": "x"},
        "begin_delivery": {},
    }
    for verb, payload in payloads.items():
        response = eve.post(f"/api/mail/{verb}", json={"letter": "", **payload})
        assert response.status_code == 400, verb
        assert response.json()["error"]["details"]["reason"] == "bad_id", verb


def test_read_only_token_runs_no_sql(http_server: HttpServer, store: Corral) -> None:
    with http_server.client(store.tokens.create("r", scope="read").value) as reader:
        assert is_forbidden(reader.get("/api/db/sql", params={"query": "SELECT 1"}))
    with http_server.client(store.tokens.create("f", scope="full").value) as full:
        assert full.get("/api/db/sql", params={"query": "SELECT 1"}).json()["rows"] == [[1]]


def test_wait_of_a_read_only_token_drives_nothing(
    http_server: HttpServer, store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr(lifecycle, "MAX_LISTEN_SECONDS", 0.001)
    monkeypatch.setattr(lifecycle.recovery, "check_run", lambda _, run: checked.append(run.id))
    run = running(store)
    token = store.tokens.create("r", scope="read").value
    events = list_events(store)
    with http_server.client(token) as reader:
        waited = reader.get(f"/api/runs/{run.id}/wait", params={"timeout_ms": 50})
        assert waited.json()["error"]["details"]["timed_out"] is True
        assert is_forbidden(reader.post("/api/races/rac_1/wait", json={}))
        assert reader.get("/api/races/rac_1/wait").status_code == 405
    assert (checked, list_events(store)) == ([], events)
    with pytest.raises(NotYet):
        store.runs.wait(run.id, timeout_ms=50)
    assert {*checked} == {run.id}


def test_agent_token_cannot_log_in_a_browser(http_server: HttpServer, store: Corral) -> None:
    store.agents.create("eve")
    token = store.tokens.create("e", scope="agent:eve").value
    response = httpx.get(f"{http_server.url}/", params={"token": token})
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


def test_agent_holding_its_calls_open_blocks_no_other_client(
    eve: httpx.Client, http_server: HttpServer, store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sends endless bodies; others are answered, and its connections close."""
    monkeypatch.setattr(
        body_limits, "AGENT_LIMIT", body_limits.AGENT_LIMIT._replace(idle_seconds=8.0)
    )
    head = (
        f"POST /api/mail/put HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {eve.headers['authorization']}\r\nContent-Length: 100\r\n\r\n{{"
    )
    host, _, port = http_server.url.removeprefix("http://").partition(":")
    lines: list[socket.socket] = []

    def open_request() -> None:
        lines.append(socket.create_connection((host, int(port)), timeout=30))
        lines[-1].sendall(head.encode())

    def is_limit_reached() -> bool:
        open_request()  # this call may just have taken a free slot
        return "too_many" in eve.get("/api/agents/eve").text

    try:
        for _ in range(concurrency.MAX_PER_AGENT - 1):
            open_request()
        wait_until(is_limit_reached, "the agent has reached its connection limit")
        with http_server.client(store.tokens.create("a", scope="agent:ada").value) as ada:
            assert ada.get("/api/agents/ada").status_code == 200
        results = [line.recv(4_096).split(b"\r\n")[0].split()[1] for line in lines]
        assert results.count(b"408") >= concurrency.MAX_PER_AGENT
        assert eve.get("/api/agents/eve").status_code == 200
    finally:
        for line in lines:
            line.close()


def test_deeply_nested_letter_keeps_its_mailbox_readable(eve: httpx.Client, store: Corral) -> None:
    for depth in (200, 900, 990):
        body = "[" * depth + "]" * depth
        payload = f'{{"mailbox": "agent:ada", "body": {body}}}'
        headers = {"content-type": "application/json"}
        response = eve.post("/api/mail/put", content=payload, headers=headers)
        assert response.status_code == 400, depth
        assert depth > 900 or response.json()["error"]["details"]["reason"] == "nested_too_deeply"
    flat = [["[" * 500, {"{": [1]}]] * 300
    assert eve.post("/api/mail/put", json={"mailbox": "agent:ada", "body": flat}).status_code == 200
    assert [letter.body for letter in store.mail.claim("agent:ada", owner="a")] == [flat]


def test_agent_creates_no_group_by_naming_unknown_projects(
    eve: httpx.Client, store: Corral, tmp_path: Path
) -> None:
    project = create_project(store, tmp_path / "p")
    for name in ("prj_none", "/no/such/dir", "x"):
        payload = {"text": "x", "project": name}
        assert eve.post("/api/groups/broadcast", json=payload).status_code in (400, 404), name
    groups = set()
    for name in (project.id, project.id[:-2], str(tmp_path / "p")):
        result = eve.post("/api/groups/broadcast", json={"text": "x", "project": name}).json()
        groups.add(result["group_id"])
    assert len(groups) == len(store.groups.list().items) == 1
