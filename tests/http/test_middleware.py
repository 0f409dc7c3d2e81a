"""Authentication, origin checks, limits and security headers."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from corral.api import Corral
from corral.http import token_cache
from corral.http.middleware import rate_limits
from corral.http.middleware.http_middleware import is_agent_path
from corral.http.middleware.rate_limits import Rate, RateLimiter
from corral.kernel.clock import SECOND
from tests.support.home import wait_until
from tests.support.http_server import HttpServer, run_http_server
from tests.support.store import rows


def show_identity(request: Request) -> Response:
    return PlainTextResponse(f"{request.state.who.name} {request.state.who.scope}")


def put_letter(request: Request) -> Response:
    letter = request.state.store.mail.put("agent:ada", "x")
    return PlainTextResponse(letter.id)


def raise_error(request: Request) -> Response:
    raise ZeroDivisionError("secret words")


def error_page(request: Request, status: int, message: str, **error: object) -> Response:
    return HTMLResponse(f"<h1>{status}</h1>", status_code=status)


PAGES = [
    Route("/", show_identity),
    Route("/act", put_letter, methods=["POST"]),
    Route("/error", raise_error),
]


@pytest.fixture
def http_server(store: Corral) -> Iterator[HttpServer]:
    with run_http_server(store, pages=PAGES, error_page=error_page) as running:
        yield running


def test_request_without_a_token_is_rejected(http_server: HttpServer) -> None:
    with http_server.anonymous_client() as client:
        page = client.get("/")
        assert page.status_code == 401
        assert page.text == "<h1>401</h1>"
        for path in ("/api/runs", "/api/nothing", "/metrics"):
            response = client.get(path)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "unauthenticated"
            assert response.headers["www-authenticate"] == "Bearer"


def test_invalid_token_is_rejected_and_not_repeated(http_server: HttpServer) -> None:
    for token in ("crl_" + "0" * 64, "x", "\u00fc"):
        with http_server.anonymous_client() as client:
            headers = {"Authorization": f"Bearer {token}".encode("latin-1")}
            response = client.get("/api/runs", headers=headers)
            assert response.status_code == 401
            assert token not in response.json()["error"]["details"].values()


def test_revoked_token_is_rejected(http_server: HttpServer) -> None:
    token = http_server.store.tokens.create("other")
    http_server.store.tokens.revoke("other")
    with http_server.client(token.value) as client:
        response = client.get("/api/runs")
        assert response.status_code == 401
        assert response.json()["error"]["details"]["reason"] == "revoked"


@pytest.mark.parametrize("end", ["revoke the token", "retire its agent"])
def test_token_in_use_is_rejected_as_soon_as_it_is_revoked(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(token_cache, "TTL_SECONDS", 600.0)  # so that nothing else ends it
    http_server.store.agents.create("ada")
    token = http_server.store.tokens.create("other", scope="agent:ada")
    with http_server.client(token.value) as client:
        assert client.get("/api/tasks").status_code != 401
        if end == "revoke the token":
            http_server.store.tokens.revoke("other")
        else:
            http_server.store.agents.retire("ada")
        wait_until(
            lambda: client.get("/api/tasks").status_code == 401, "the revoked token is rejected"
        )


@pytest.mark.parametrize("kind", ["token", "agent"])
def test_cached_token_expires_with_the_token_or_its_agent(store: Corral, kind: str) -> None:
    store.agents.create("ada")
    secret = store.tokens.create("other", scope="agent:ada").value
    cache = token_cache.TokenCache(store)
    assert cache.look_up(secret) == cache.get_cached(secret)
    if kind == "token":
        store.tokens.revoke("other")
    else:
        store.agents.retire("ada")
    (event,) = wait_until(
        lambda: [item for item in store.events.newest(limit=1).items if item.kind == kind],
        "the feed has removed the token from the cache",
    )
    cache.handle_event(event)
    assert cache.get_cached(secret) is None


def test_cached_token_expires_with_the_token(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    monkeypatch.setattr(token_cache, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    secret = store.tokens.create("short", ttl_ms=2 * SECOND).value
    cache = token_cache.TokenCache(store)
    identity = cache.look_up(secret)
    passed[0] = 1.9
    assert cache.get_cached(secret) == identity
    passed[0] = 2.1
    assert cache.get_cached(secret) is None


def test_page_knows_its_caller(http_server: HttpServer) -> None:
    with http_server.client() as client:
        assert client.get("/").text == "tests full"


def test_login_link_moves_the_token_from_the_url_to_a_cookie(
    http_server: HttpServer,
) -> None:
    with http_server.anonymous_client() as browser:
        response = browser.get(f"/?a=1&token={http_server.token}&b=%26")
        assert response.status_code == 303
        assert response.headers["location"] == "/?a=1&b=%26"
        cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert browser.get("/").text == "tests full"


def test_login_link_never_redirects_to_another_host(http_server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", http_server.port)) as line:
        line.sendall(
            f"GET //evil.example/?token={http_server.token} HTTP/1.1\r\n"
            f"Host: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        )
        text = line.makefile("rb").read().decode()
    assert "303" in text.splitlines()[0]
    assert "location: /evil.example/\r\n" in text


def test_login_link_with_an_invalid_token_sets_no_cookie(http_server: HttpServer) -> None:
    with http_server.anonymous_client() as browser:
        response = browser.get("/?token=crl_wrong")
        assert response.status_code == 401
        assert "set-cookie" not in response.headers


def test_request_with_foreign_host_is_rejected(http_server: HttpServer) -> None:
    with http_server.client() as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80"):
            response = client.get("/api/runs", headers={"Host": host})
            assert response.status_code == 403, host
        for host in ("localhost", "127.0.0.1:1", "[::1]:7717", "LOCALHOST:80"):
            assert client.get("/", headers={"Host": host}).status_code == 200, host


def test_request_with_foreign_origin_is_rejected(http_server: HttpServer) -> None:
    with http_server.client() as client:
        foreign = [
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{http_server.port + 1}"},
            {"Sec-Fetch-Site": "cross-site"},
        ]
        for headers in foreign:
            assert client.post("/act", headers=headers).status_code == 403, headers
        assert rows(http_server.store, "SELECT count(*) FROM letters") == [(0,)]
        same_origin = {"Origin": http_server.url, "Sec-Fetch-Site": "same-origin"}
        assert client.post("/act", headers=same_origin).status_code == 200


def test_read_only_token_changes_nothing(http_server: HttpServer) -> None:
    with http_server.client(http_server.store.tokens.create("eyes", scope="read").value) as client:
        assert client.get("/").text == "eyes read"
        assert client.post("/act").status_code == 403
    assert rows(http_server.store, "SELECT count(*) FROM letters") == [(0,)]


def test_agent_token_opens_no_page(http_server: HttpServer) -> None:
    http_server.store.agents.create("ada")
    with http_server.client(
        http_server.store.tokens.create("a", scope="agent:ada").value
    ) as client:
        assert client.get("/").status_code == 403
        assert client.post("/act").status_code == 403


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("/api", True),
        ("/api/", True),
        ("/api/runs", True),
        ("/mcp", True),
        ("/apis", False),
        ("/mcpx", False),
        ("/", False),
    ],
)
def test_agent_token_is_limited_to_the_api_and_mcp(path: str, is_allowed: bool) -> None:
    assert is_agent_path(path) is is_allowed


def test_event_names_the_token_that_acted(http_server: HttpServer) -> None:
    with http_server.client() as client:
        id = client.post("/act").text
    assert rows(http_server.store, "SELECT actor FROM events WHERE subject = :id", id=id) == [
        ("token:tests",)
    ]


def test_internal_error_shows_no_traceback(http_server: HttpServer) -> None:
    with http_server.client() as client:
        response = client.get("/error")
        assert response.status_code == 500
        assert "secret words" not in response.text
        assert client.get("/nothing").text == "<h1>404</h1>"
        assert client.post("/").status_code == 405


def test_every_response_has_security_headers(http_server: HttpServer) -> None:
    for client in (http_server.client(), http_server.anonymous_client()):
        with client:
            for path in ("/", "/nothing", "/healthz", "/api/runs", "/api/nothing", "/error"):
                headers = client.get(path).headers
                policy = headers["content-security-policy"]
                assert "script-src 'self'; style-src 'self' 'sha256-" in policy
                assert "unsafe" not in policy
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["referrer-policy"] == "same-origin"
                assert headers["cache-control"] == "no-store"


def test_only_the_health_check_needs_no_token(store: Corral) -> None:
    with run_http_server(store, status=lambda: {"loops": 3}) as http_server:
        with http_server.anonymous_client() as client:
            assert "status" not in client.get("/healthz").json()
        with http_server.client() as client:
            assert client.get("/healthz").json()["status"] == {"loops": 3}


def test_oversized_body_is_rejected_before_it_is_read(http_server: HttpServer) -> None:
    with http_server.client() as client:
        response = client.post("/api/mail/put", content=b"x" * (10 * 1024 * 1024 + 1))
        assert response.status_code == 413
        assert "10 MB" in response.json()["error"]["message"]

        def pieces() -> Iterator[bytes]:
            for _ in range(11):
                yield b"x" * 1024 * 1024

        assert client.post("/api/mail/put", content=pieces()).status_code == 413


def test_rate_limited_response_has_a_retry_time(store: Corral) -> None:
    rates = {"full": Rate(0.5, 3), "read": Rate(1, 3), "agent": Rate(1, 3)}
    with (
        run_http_server(store, pages=PAGES, rates=rates) as http_server,
        http_server.client() as client,
    ):
        results = [client.get("/").status_code for _ in range(4)]
        assert results == [200, 200, 200, 429]
        answer = client.get("/api/runs")
        assert answer.json()["error"]["code"] == "too_many"
        assert 1 <= int(answer.headers["retry-after"]) <= 2


def test_token_guessing_is_throttled_without_locking_others_out(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rate_limits, "ANONYMOUS_RATE", Rate(0.01, 20)
    )  # however slow this machine is
    with http_server.anonymous_client() as stranger:
        results = [
            stranger.get("/api/runs", headers={"Authorization": f"Bearer crl_{n:064x}"}).status_code
            for n in range(30)
        ]
    assert {*results} == {401, 429}
    with http_server.client(http_server.store.tokens.create("new").value) as client:
        assert client.get("/").status_code == 200


def test_rate_limit_bucket_refills_over_time() -> None:
    now = 0.0
    buckets = RateLimiter(now=lambda: now)
    rate = Rate(2, 2)
    assert [buckets.take("a", rate) for _ in range(3)] == [0, 0, 0.5]
    now = 0.5
    assert [buckets.take("a", rate) for _ in range(2)] == [0, 0.5]
    assert buckets.take("b", rate) == 0


def test_malformed_request_does_not_stop_the_server(http_server: HttpServer) -> None:
    for garbage in (b"\x00\xff" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET /%zz%00 HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", http_server.port), timeout=10) as line:
            line.sendall(garbage)
            line.shutdown(socket.SHUT_WR)
            line.recv(4096)
    with http_server.client() as client:
        assert client.get("/healthz").status_code == 200
