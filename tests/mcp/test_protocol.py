"""The MCP protocol, message by message: responses, errors and shutdown."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import corral
from corral.api import Corral
from corral.mcp.http import routes
from tests.support.home import wait_until
from tests.support.http_server import HttpServer, run_http_server
from tests.support.mcp_clients import (
    MODERN,
    Agent,
    StdioClient,
    ToolError,
    environment,
    stdio_client,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A SQLite store with an agent; the protocol does not depend on the engine."""
    (tmp_path / "project").mkdir()
    with corral.open(f"sqlite:///{tmp_path}/corral.db") as store:
        store.agents.create("ada", command="cat")
        store.projects.register(tmp_path / "project")
    return tmp_path


def make_environment(home: Path, agent: str | None = "ada", **more: str) -> dict[str, str]:
    return environment(f"sqlite:///{home}/corral.db", agent, home / "home", **more)


@pytest.fixture
def server(home: Path) -> Iterator[StdioClient]:
    with stdio_client(make_environment(home), home / "project") as opened:
        yield opened


# -- on standard input -------------------------------------------------------------------------


def test_protocol_version_is_negotiated(server: StdioClient) -> None:
    for requested, value in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ]:
        result = server.ask("initialize", protocolVersion=requested)["result"]
        assert result["protocolVersion"] == value
        assert result["serverInfo"]["name"] == "corral"
        assert "whoami" in result["instructions"]
    result = server.ask("server/discover", _meta=MODERN)["result"]
    assert result["supportedVersions"] == ["2026-07-28"]
    assert (result["resultType"], result["cacheScope"]) == ("complete", "public")
    unknown = {**MODERN, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    result = server.ask("tools/list", _meta=unknown)["error"]
    assert (result["code"], result["data"]["supported"]) == (-32022, ["2026-07-28"])


def test_older_client_sees_no_newer_features(server: StdioClient) -> None:
    result = server.ask("tools/list")["result"]
    assert {*result} == {"tools"}
    assert server.ask("ping")["result"] == {}
    assert server.ask("ping", _meta=MODERN)["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"nonsense", -32700, None),
        (b"[" * 100_000, -32600, None),
        (b'{"params":' * 100_000 + b"1" + b"}" * 100_000, -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[]", -32600, None),
        (b'{"id":1,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"no"}}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":"x","method":"resources/list"}', -32601, "x"),
        (b'{"jsonrpc":"2.0","id":7,"method":"initialize"}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":0,"method":"tools/call","params":[]}', -32602, 0),
        (b'{"jsonrpc":"2.0","id":7,"method":"server/discover"}', -32602, 7),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_message_is_answered_and_the_next_is_served(
    server: StdioClient, line: bytes, code: int, id: Any
) -> None:
    server.send(line)
    result = server.next()
    assert (result["error"]["code"], result["id"]) == (code, id)
    assert server.ask("ping", id=8) == {"jsonrpc": "2.0", "id": 8, "result": {}}


HALVES = [rb"\ud83d", b"\xf0\x9f"]
"""Half of an emoji: a lone surrogate as a JSON escape, and the first bytes of its UTF-8."""


def remember_call(text: bytes) -> bytes:
    params = b'{"name":"remember","arguments":{"text":"cut %s"}}' % text
    return b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%s}' % params


@pytest.mark.parametrize("half", HALVES)
def test_lone_surrogate_is_replaced_and_the_call_answered(server: StdioClient, half: bytes) -> None:
    server.send(remember_call(half))
    result = server.next()
    assert result["id"] == 7, "without a response the client would wait forever"
    assert not result["result"].get("isError"), result


def test_notification_gets_no_response(server: StdioClient) -> None:
    for method in ("notifications/initialized", "notifications/cancelled", "tools/call", "x"):
        server.send({"jsonrpc": "2.0", "method": method})
        server.send(f'{{"jsonrpc":"2.0","method":"{method}","params":[1]}}'.encode())
    server.send(b"   ")
    assert server.ask("ping", id="last")["id"] == "last"


def test_waiting_call_can_be_cancelled_and_gets_no_response(server: StdioClient) -> None:
    arguments = {"name": "inbox", "arguments": {"wait_seconds": 50}}
    server.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": arguments})
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    server.send(cancel)
    assert server.ask("ping", id=6)["id"] == 6


def test_server_exits_with_its_client_while_a_call_waits(home: Path) -> None:
    with stdio_client(make_environment(home), home / "project") as server:
        arguments = {"name": "inbox", "arguments": {"wait_seconds": 50}}
        server.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": arguments})
        assert server.ask("ping", id=6)["id"] == 6
        start = time.monotonic()
    assert time.monotonic() - start < 50, "the server exits without waiting for the call"


def test_responses_are_sent_after_the_end_of_input(home: Path) -> None:
    with stdio_client(make_environment(home), home / "project") as server:
        call = {"name": "inbox", "arguments": {}}
        server.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": call})
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.next()["id"] == 5


def test_caller_is_identified_by_the_environment_only(home: Path) -> None:
    with (
        stdio_client(make_environment(home, None), home) as server,
        pytest.raises(ToolError, match="CORRAL_AGENT"),
    ):
        server.call("whoami")
    with (
        stdio_client(make_environment(home, "eve"), home) as server,
        pytest.raises(ToolError, match="No agent"),
    ):
        server.call("whoami")
    with (
        stdio_client(make_environment(home, CORRAL_RUN="run_" + "0" * 26), home) as server,
        pytest.raises(ToolError, match="run"),
    ):
        server.call("whoami")
    with stdio_client(make_environment(home), home / "project") as server:
        assert server.call("whoami")["project"]["dir"] == str(home / "project")


def test_unavailable_store_is_reported_to_the_agent(home: Path) -> None:
    (home / "corral.db").write_bytes(b"not a database, by far" * 100)
    with stdio_client(make_environment(home), home) as server:
        assert server.ask("tools/list")["result"]["tools"]
        with pytest.raises(ToolError, match="Nothing was changed") as caught:
            server.call("whoami")
        assert caught.value.code == "store_unavailable"


# -- over HTTP ---------------------------------------------------------------------------------


@pytest.fixture
def http_server(home: Path) -> Iterator[HttpServer]:
    with (
        corral.open(f"sqlite:///{home}/corral.db") as store,
        run_http_server(store, pages=routes()) as running,
    ):
        yield running


@pytest.fixture
def token(http_server: HttpServer) -> str:
    return http_server.store.tokens.create("ada", scope="agent:ada").value


@pytest.fixture
def client(http_server: HttpServer, token: str) -> Iterator[httpx.Client]:
    with http_server.client(token) as opened:
        yield opened


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_only_post_is_answered_and_a_notification_is_accepted(client: httpx.Client) -> None:
    assert client.get("/mcp").status_code == 405
    assert client.delete("/mcp").status_code == 405
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    response = client.post("/mcp", json=notice)
    assert (response.status_code, response.content) == (202, b"")


def test_missing_token_or_foreign_origin_is_rejected(
    http_server: HttpServer, client: httpx.Client
) -> None:
    call = rpc("tools/call", name="whoami")
    with http_server.anonymous_client() as stranger:
        response = stranger.post("/mcp", json=call)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthenticated")
    response = client.post("/mcp", json=call, headers={"Origin": "https://evil.example"})
    assert response.status_code == 403
    response = client.post("/mcp", json=call, headers={"Host": "evil.example"})
    assert response.status_code == 403
    reader = http_server.store.tokens.create("reader", scope="read").value
    with http_server.client(reader) as reading:
        assert reading.post("/mcp", json=call).status_code == 403


def test_revoked_or_full_scope_token_calls_no_tool(
    http_server: HttpServer, client: httpx.Client
) -> None:
    call = rpc("tools/call", name="whoami")
    assert not client.post("/mcp", json=call).json()["result"]["isError"]
    with http_server.client() as full:
        result = full.post("/mcp", json=call).json()["result"]
        assert result["isError"]
        assert "--agent" in result["content"][0]["text"]
    http_server.store.tokens.revoke("ada")
    wait_until(lambda: client.post("/mcp", json=call).status_code == 401, "the token is rejected")


def test_headers_must_match_the_message(client: httpx.Client) -> None:
    call = rpc("tools/call", name="whoami", _meta=MODERN)
    right = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "whoami"}
    assert client.post("/mcp", json=call, headers=right).status_code == 200
    wrapped = {**right, "Mcp-Name": "=?base64?d2hvYW1p?="}
    assert client.post("/mcp", json=call, headers=wrapped).status_code == 200
    for name in right:
        headers = {**right, name: "else"}
        response = client.post("/mcp", json=call, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
    response = client.post(
        "/mcp", json=rpc("no/such", _meta=MODERN), headers={**right, "Mcp-Method": "no/such"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)
    response = client.post("/mcp", json=rpc("ping"), headers={"Mcp-Protocol-Version": "1999-01-01"})
    assert response.json()["error"]["code"] == -32022


@pytest.mark.parametrize("body", [b"", b"x", b"[" * 100_000, b"[]", b"\xff", b"null", b'"x"'])
def test_invalid_body_is_rejected(client: httpx.Client, body: bytes) -> None:
    response = client.post("/mcp", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] in (-32700, -32600)


def test_disconnected_caller_claims_nothing(
    http_server: HttpServer, client: httpx.Client, token: str
) -> None:
    call = rpc("tools/call", name="inbox", arguments={"wait_seconds": 50})
    with http_server.client(token) as short_client, pytest.raises(httpx.ReadTimeout):
        short_client.post("/mcp", json=call, timeout=httpx.Timeout(60, read=0.3))
    with http_server.client() as full:
        # A request is counted when it has ended.
        wait_until(
            lambda: 'route="/mcp"' in full.get("/metrics").text,
            "the server has noticed the disconnect",
        )
    http_server.store.mail.put("agent:ada", "not lost")
    assert http_server.store.mail.claim("agent:ada", owner="another")


# -- forwarding to a daemon -------------------------------------------------------------------


def test_command_serves_an_agent_that_has_only_the_daemons_url(
    http_server: HttpServer, token: str, home: Path
) -> None:
    http_server.store.agents.create("bob", command="cat")
    env = environment(http_server.url, None, home / "home", CORRAL_TOKEN=token)
    with stdio_client(env, home) as server:
        assert server.call("whoami")["agent"] == "ada"
        message = server.call("send", to="bob", text="from another host")
        assert http_server.store.mail.get(message["letter"]).sender == "agent:ada"
        server.send(remember_call(HALVES[0]))
        assert server.next()["id"] == 7
        result = server.ask("tools/call", name="whoami", _meta=MODERN)["result"]
        assert result["resultType"] == "complete"
        assert server.ask("no/such", _meta=MODERN)["error"]["code"] == -32601
    with stdio_client({**env, "CORRAL_TOKEN": "crl_" + "0" * 64}, home) as server:
        assert "Invalid token" in server.ask("ping")["error"]["message"]


def test_many_agents_call_concurrently(http_server: HttpServer, home: Path) -> None:
    """Sixteen threads on one endpoint: every letter arrives exactly once."""
    store: Corral = http_server.store
    store.agents.create("bob", command="cat")
    token = store.tokens.create("crowd", scope="agent:ada").value

    def send(number: int) -> None:
        with http_server.client(token) as client:
            for nth in range(5):
                text = f"{number}/{nth}"
                arguments = {"to": "bob", "text": text, "idempotency_key": text}
                call = rpc("tools/call", name="send", arguments=arguments)
                for _ in range(2):
                    assert not client.post("/mcp", json=call).json()["result"]["isError"]

    threads = [threading.Thread(target=send, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = [letter["body"] for letter in Agent(store, "bob")("inbox", limit=50)["letters"]]
    assert len(results) == len({*results}) == 50
    assert len(store.mail.list(mailbox="agent:bob", limit=200).items) == 80
