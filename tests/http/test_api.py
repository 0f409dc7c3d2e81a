"""HTTP API requests: routes, bodies, status codes, idempotency keys and permissions."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corral import config
from corral.adapters.processes import process
from corral.api import Corral
from tests.support.home import wait_until
from tests.support.http_server import HttpServer
from tests.support.race_helpers import git, make_repository
from tests.support.run_factories import held, queued, running, without_supervisors
from tests.support.store import rows, unchanged


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(http_server: HttpServer) -> Iterator[httpx.Client]:
    with http_server.client() as opened:
        opened.get("/api")  # the first use of the token is recorded
        yield opened


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def put(client: httpx.Client, **headers: str) -> httpx.Response:
    payload = {"mailbox": "agent:ada", "body": {"n": 1}}
    return client.post("/api/mail/put", json=payload, headers=headers)


# -- routes -----------------------------------------------------------------------------------


def test_list_record_and_query_are_requested(client: httpx.Client, store: Corral) -> None:
    run = running(store)
    assert [item["id"] for item in client.get("/api/runs").json()["items"]] == [run.id]
    assert client.get(f"/api/runs/{run.id[:12]}").json()["state"] == "running"
    assert client.get(f"/api/runs/{run.id}/samples").json() == []
    assert client.get(f"/api/runs/samples?id={run.id}").json() == []
    assert client.get("/api/insights/overview").json()["queued"] == 0
    assert client.get("/api").json()["engine"] == store.db.engine


def test_verb_works_with_and_without_the_id_in_the_path(
    client: httpx.Client, store: Corral
) -> None:
    for path, payload in (
        ("/api/agents/ada/retire", {}),
        ("/api/agents/restore", {"agent": "ada"}),
        ("/api/agents/ada/retire", {"agent": "ada"}),
    ):
        if not store.agents.list(retired=True).items:
            store.agents.create("ada")
        assert client.post(path, json=payload).status_code == 200, path
    assert error(client.post("/api/agents/ada/restore", json={"agent": "ben"})) == (400, "invalid")


def test_remote_run_request_needs_a_folder(
    client: httpx.Client, store: Corral, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_supervisors(monkeypatch)
    (tmp_path / "served-from" / "inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "served-from")
    with unchanged(store):
        response = client.post("/api/runs/start", json={"command": ["true"]})
        assert error(response) == (400, "invalid")
        assert "`project`" in response.json()["error"]["message"]
        relative = client.post("/api/runs/start", json={"command": ["true"], "project": "inside"})
        assert error(relative) == (404, "not_found")
    (tmp_path / "work").mkdir()
    for project in (str(tmp_path / "work"), store.projects.register(tmp_path / "work").id):
        response = client.post("/api/runs/start", json={"command": ["true"], "project": project})
        assert response.json()["cwd"] == str(tmp_path / "work")
    store.agents.create("ada", command="true", workspace=str(tmp_path / "work"))
    agent_run = client.post("/api/runs/start", json={"agent": "ada", "prompt": "x"}).json()
    assert agent_run["cwd"] == str(tmp_path / "work")
    store.runs.stop(agent_run["id"])
    resumed = client.post(f"/api/runs/{agent_run['id']}/resume", json={"prompt": "y"})
    assert resumed.json()["cwd"] == str(tmp_path / "work")


def test_remote_race_request_needs_a_folder(
    client: httpx.Client, store: Corral, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_supervisors(monkeypatch)
    current = make_repository(tmp_path / "served-from")
    monkeypatch.chdir(current)
    (current / "inside").mkdir()
    store.agents.create("ada", command="true")
    for scope in ({}, {"project": None}, {"project": ""}, {"project": "."}, {"project": "inside"}):
        response = client.post(
            "/api/races/start", json={"prompt": "Do it", "agents": "ada", **scope}
        )
        assert response.status_code in (400, 404), response.text
    assert store.projects.list().items == []
    assert git(current, "branch", "--format=%(refname:short)") == "main"
    other = make_repository(tmp_path / "meant")
    by_path = {"prompt": "Do it", "agents": "ada", "project": str(other)}
    race = client.post("/api/races/start", json=by_path).json()
    assert race["repository"] == str(other)
    by_id = by_path | {"project": race["project_id"]}
    assert client.post("/api/races/start", json=by_id).json()["repository"] == str(other)


def test_pages_continue_at_their_cursor(client: httpx.Client) -> None:
    for _ in range(3):
        put(client)
    first = client.get("/api/mail?limit=2").json()
    rest = client.get("/api/mail", params={"limit": 2, "after": first["next"]}).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == ["let_1", "let_2", "let_3"]
    assert rest["next"] is None


def test_missing_record_is_404(client: httpx.Client) -> None:
    assert error(client.get("/api/rnus")) == (404, "not_found")
    assert "runs" in client.get("/api/rnus").json()["error"]["message"]
    assert error(client.get("/api/runs/run_000")) == (404, "not_found")
    assert error(client.post("/api/runs/x/paint")) == (404, "not_found")
    assert error(client.get("/api/a/b/c/d")) == (404, "not_found")
    assert error(client.post("/api/runs/x/heartbeat")) == (404, "not_found")
    local = client.post("/api/runs/x/record")
    assert error(local) == (404, "not_found")
    assert "runs.record" in local.json()["error"]["message"]
    assert "/api/events" in client.get("/api/events/follow").json()["error"]["message"]


def test_wrong_method_names_the_allowed_one(client: httpx.Client) -> None:
    response = client.get("/api/mail/put")
    assert error(response) == (405, "invalid")
    assert response.headers["allow"] == "POST"
    assert client.post("/api/runs").status_code == 405
    assert client.delete("/api/runs").status_code == 405
    assert client.head("/api/runs").status_code == 200


CLIMBING = [
    "/api/runs/..%2f..%2fetc%2fpasswd",
    "/api/runs/%2e%2e",
    "/api/runs/a%00b",
    "/api/runs/%ff",
    "/api/../../etc/passwd",
    "/api/runs/../../../etc/passwd/output",
    "/api/runs/..%2f..%2fx/output",
]


def test_path_traversal_is_404(client: httpx.Client, http_server: HttpServer) -> None:
    for path in CLIMBING:
        response = client.send(client.build_request("GET", httpx.URL(http_server.url + path)))
        assert response.status_code in (400, 404), (path, response.text)
        assert "root:" not in response.text


def test_run_exposes_no_file_but_its_output(client: httpx.Client, store: Corral) -> None:
    queued_run = queued(store)
    folder = config.run_folder(queued_run.id)
    folder.mkdir(parents=True)
    (folder / "output").write_bytes(b"hello\n")
    (folder.parent / "secret").write_bytes(b"key")
    store.internal.runs.acquire(queued_run.id, held(host=process.host(), folder=str(folder)))
    path = f"/api/runs/{queued_run.id}/output"
    response = client.get(path)
    assert response.content == b"hello\n"
    assert response.headers["content-type"] == "application/octet-stream"
    assert (response.headers["x-next-offset"], response.headers["x-more"]) == ("6", "true")
    assert client.get(path, params={"tail": 1}).content == b"hello"
    for stream in ("../secret", "/etc/passwd", "output/../../secret", "outputs"):
        assert error(client.get(path, params={"stream": stream})) == (400, "invalid")
    for query in ("offset=-1", "limit=0", "limit=9999999", "limit=x", "colour=red"):
        assert error(client.get(f"{path}?{query}")) == (400, "invalid"), query


# -- bodies -----------------------------------------------------------------------------------


WRONG = [
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b'{"mailbox": 1, "body": 1}',
    b'{"mailbox": "agent:ada"}',
    b'{"mailbox": "agent:ada", "body": 1, "colour": "red"}',
    b'{"mailbox": "agent:ada", "body": 1, "priority": 1e999}',
    b'{"mailbox": "agent:ada", "body": 1, "priority": 99999999999999999999}',
    b'{"mailbox": "agent:a\\u0000da", "body": 1}',
    b'{"mailbox": "agent:ada", "body": "\\ud800"}',
    b'{"mailbox": "agent:ada", "body": ' + b"[" * 100_000,
    b"",
]


def test_invalid_body_is_rejected(client: httpx.Client, store: Corral) -> None:
    headers = {"Content-Type": "application/json"}
    with unchanged(store):
        for body in WRONG:
            response = client.post("/api/mail/put", content=body, headers=headers)
            assert error(response) == (400, "invalid"), body[:80]
            assert "Traceback" not in response.text


def test_form_body_is_rejected(client: httpx.Client) -> None:
    assert client.post("/api/mail/put", data={"mailbox": "agent:ada"}).status_code == 415


def test_invalid_query_is_rejected(client: httpx.Client) -> None:
    for query in ("limit=x", "limit=1&limit=2", "colour=red", "after=%ff", "limit=0"):
        assert error(client.get(f"/api/mail?{query}")) == (400, "invalid"), query


def test_agent_text_is_returned_unchanged_and_never_as_html(client: httpx.Client) -> None:
    body = '<script>alert(1)</script>\x1b[31m"\u2028'
    client.post("/api/mail/put", json={"mailbox": "agent:ada", "body": body})
    response = client.get("/api/mail/let_1")
    assert response.json()["body"] == body
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"


# -- states and leases ----------------------------------------------------------------------


def test_status_follows_the_kind_of_error(client: httpx.Client, store: Corral) -> None:
    put(client)
    client.post("/api/mail/claim", json={"mailbox": "agent:ada", "owner": "o"})
    assert error(client.post("/api/mail/let_1/ack", json={"fence": 9})) == (423, "held")
    store.agents.create("ada")
    assert error(client.post("/api/agents/create", json={"name": "ada"})) == (409, "conflict")
    store.agents.retire("ada")
    response = client.post("/api/agents/ada/retire")
    assert error(response) == (409, "illegal_move")
    assert response.json()["error"]["details"]["state"] == "retired"


def test_unavailable_store_is_503(
    client: httpx.Client, store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corral.errors import StoreUnavailable

    def unusable(*_: object, **__: object) -> None:
        raise StoreUnavailable("The disk is full.", reason="full")

    client.get("/api/runs")  # the token is cached from here on
    for name in ("read", "schema_version"):
        monkeypatch.setattr(store._database, name, unusable)
    response = client.get("/api/runs/newest")
    assert error(response) == (503, "store_unavailable")
    assert response.headers["retry-after"]
    assert client.get("/healthz").status_code == 503


# -- idempotency ---------------------------------------------------------------------------


def test_repeated_call_with_a_key_is_done_once_with_one_response(
    client: httpx.Client, store: Corral
) -> None:
    first = put(client, **{"Idempotency-Key": "k"})
    with unchanged(store):
        repeated = put(client, **{"Idempotency-Key": "k"})
    assert repeated.content == first.content
    assert put(client, **{"Idempotency-Key": "other"}).json()["id"] != first.json()["id"]


def test_key_of_another_call_is_rejected(client: httpx.Client, store: Corral) -> None:
    put(client, **{"Idempotency-Key": "k"})
    with unchanged(store):
        response = client.post(
            "/api/mail/put",
            json={"mailbox": "agent:ada", "body": 2},
            headers={"Idempotency-Key": "k"},
        )
        assert error(response) == (409, "conflict")


def test_keys_of_two_tokens_are_independent(client: httpx.Client, http_server: HttpServer) -> None:
    first = put(client, **{"Idempotency-Key": "k"})
    with http_server.client(http_server.store.tokens.create("other").value) as other:
        assert put(other, **{"Idempotency-Key": "k"}).json()["id"] != first.json()["id"]


def test_rejected_call_may_be_repeated(client: httpx.Client, store: Corral) -> None:
    headers = {"Idempotency-Key": "k"}
    assert client.post("/api/agents/ada/retire", headers=headers).status_code == 404
    store.agents.create("ada")
    assert client.post("/api/agents/ada/retire", headers=headers).status_code == 200
    assert client.post("/api/agents/ada/retire", headers=headers).status_code == 200
    assert error(client.post("/api/agents/ada/retire")) == (409, "illegal_move")


def test_ten_concurrent_calls_with_one_key_are_done_once(http_server: HttpServer) -> None:
    results: list[httpx.Response] = []

    def call() -> None:
        with http_server.client() as client:
            results.append(put(client, **{"Idempotency-Key": "k"}))

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {answer.text for answer in results} == {results[0].text}
    assert rows(http_server.store, "SELECT count(*) FROM letters") == [(1,)]


def test_composed_call_with_a_key_returns_the_same_letters(client: httpx.Client) -> None:
    put(client)
    put(client)
    payload = {"mailbox": "queue:q", "owner": "o"}
    for _ in range(2):
        client.post("/api/mail/put", json={"mailbox": "queue:q", "body": 1})
    headers = {"Idempotency-Key": "k"}
    first = client.post("/api/mail/claim", json=payload, headers=headers).json()
    assert client.post("/api/mail/claim", json=payload, headers=headers).json() == first
    assert client.post("/api/mail/claim", json=payload).json() != first


def test_call_with_unknown_outcome_is_not_repeated(client: httpx.Client, store: Corral) -> None:
    payload = json.dumps({"mailbox": "queue:q", "owner": "o"}).encode()
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    client.post("/api/mail/put", json={"mailbox": "queue:q", "body": 1})
    assert client.post("/api/mail/claim", content=payload, headers=headers).json()
    rows(
        store, "UPDATE idempotency_keys SET response = NULL"
    )  # as if the server had crashed in between
    with unchanged(store):
        response = client.post("/api/mail/claim", content=payload, headers=headers)
        assert error(response) == (409, "conflict")
        assert "has no response" in response.json()["error"]["message"]


def test_secret_of_a_token_is_not_stored(client: httpx.Client, store: Corral) -> None:
    result = client.post(
        "/api/tokens/create", json={"name": "x"}, headers={"Idempotency-Key": "k"}
    ).json()
    results = [
        row
        for table in ("tokens", "idempotency_keys", "events")
        for row in rows(store, f"SELECT * FROM {table}")
    ]
    assert result["value"].startswith("crl_")
    assert result["value"] not in repr(results)


# -- waiting ----------------------------------------------------------------------------------


def test_claim_waits_for_a_letter(client: httpx.Client, store: Corral) -> None:
    waiting = threading.Timer(0.3, lambda: store.mail.put("agent:ada", "late"))
    waiting.start()
    payload = {"mailbox": "agent:ada", "owner": "o", "wait_ms": 20_000}
    (letter,) = client.post("/api/mail/claim", json=payload).json()
    waiting.join()
    assert letter["body"] == "late"


def test_disconnected_client_claims_nothing(http_server: HttpServer, store: Corral) -> None:
    payload = {"mailbox": "agent:ada", "owner": "o", "wait_ms": 20_000}
    with http_server.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/api/mail/claim", json=payload, timeout=httpx.Timeout(60, read=0.3))
    with http_server.client() as client:
        # The server notices at its next check; then no call claims the letter any more.
        wait_until(
            lambda: "mail.claim" in client.get("/metrics").text,
            "the server has noticed the disconnect",
        )
    store.mail.put("agent:ada", 1)
    assert [letter.owner for letter in store.mail.list().items] == [None]


# -- agents -----------------------------------------------------------------------------------


@pytest.fixture
def ada(http_server: HttpServer) -> Iterator[httpx.Client]:
    http_server.store.agents.create("ada")
    http_server.store.agents.create("ben")
    with http_server.client(
        http_server.store.tokens.create("ada", scope="agent:ada").value
    ) as opened:
        yield opened


def test_agent_reads_its_own_mail_and_sends_in_its_own_name(
    ada: httpx.Client, store: Corral
) -> None:
    store.mail.put("agent:ada", "hello")
    (letter,) = ada.post("/api/mail/claim", json={"mailbox": "agent:ada", "owner": "x"}).json()
    response = ada.post(f"/api/mail/{letter['id']}/ack", json={"fence": letter["fence"]})
    assert response.json()["state"] == "done"
    payload = {"mailbox": "agent:ben", "body": "hi", "sender": "user:boss"}
    assert ada.post("/api/mail/put", json=payload).json()["sender"] == "agent:ada"
    assert rows(store, "SELECT DISTINCT actor FROM events WHERE subject = 'let_2'") == [
        ("agent:ada",)
    ]


def test_agent_sees_no_mail_of_others(ada: httpx.Client, store: Corral) -> None:
    store.mail.put("agent:ben", "secret", key="k")
    foreign_session = store.sessions.open("ben")
    store.sessions.append(foreign_session, "user", "secret")
    forbidden = [
        ada.get("/api/mail"),
        ada.get("/api/mail/let_1"),
        ada.get("/api/runs"),
        ada.get("/api/events"),
        ada.get("/api/tokens"),
        ada.get("/api/db/sql?query=select+1"),
        ada.get(f"/api/sessions/{foreign_session.id}/turns"),
        ada.get("/api/agents/ben"),
        ada.post("/api/mail/claim", json={"mailbox": "agent:ben", "owner": "x"}),
        ada.post("/api/mail/claim", json={"mailbox": "queue:q", "owner": "x"}),
        ada.post("/api/mail/put", json={"mailbox": "hook:alr_1", "body": 1}),
        ada.post("/api/runs/start", json={"command": ["true"]}),
        ada.post("/api/tokens/create", json={"name": "x"}),
        ada.post("/api/settings/set", json={"name": "mail.retention_ms", "value": 1}),
    ]
    assert {item.status_code for item in forbidden} == {403}
    assert not any("secret" in item.text for item in forbidden)
    same_key = ada.post("/api/mail/put", json={"mailbox": "agent:ben", "body": 1, "key": "k"})
    assert same_key.json()["body"] == 1


def test_agent_lists_only_its_own_sessions(ada: httpx.Client, store: Corral) -> None:
    own_session = store.sessions.open("ada")
    store.sessions.open("ben")
    items = ada.get("/api/sessions", params={"agent": "ben"}).json()["items"]
    assert [session["id"] for session in items] == [own_session.id]
    response = ada.post(
        f"/api/sessions/{own_session.id}/append", json={"role": "assistant", "content": "x"}
    )
    assert response.json()["agent_id"] == store.agents.get("ada").id


def test_token_of_a_retired_agent_is_rejected(ada: httpx.Client, store: Corral) -> None:
    assert ada.get("/api/agents/ada").status_code == 200
    store.agents.retire("ada")
    wait_until(lambda: ada.get("/api/agents/ada").status_code == 401, "the token is rejected")


def test_api_documentation_needs_no_other_host(client: httpx.Client) -> None:
    page = client.get("/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert client.get("/api/openapi.json").json()["openapi"] == "3.1.0"
    metrics = client.get("/metrics").text
    assert 'corral_requests_total{method="GET",route="/api/docs",status="200"} 1' in metrics
