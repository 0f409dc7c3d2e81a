"""The one door: every request, to the API and to the pages alike, passes here first.

In this order: the Host header (a foreign name that points here is no way in), the token, the
Origin of a write, what the token's scope allows, how much its caller may ask for. Behind it a
handler finds `who` calls and a `store` that acts in their name in its request's state. Whatever
happens, the answer is a sentence and never a traceback.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from corral.api import Corral
from corral.api.tokens import Who
from corral.http.bodies import AGENT as AGENT_BODY
from corral.http.bodies import KNOWN as KNOWN_BODY
from corral.http.bodies import STRANGER as STRANGER_BODY
from corral.http.bodies import Bodies, check_json
from corral.http.connections import CONNECTION, Connection
from corral.http.errors import JSON, NO_STORE, SECURITY, Problem, body_of, problem_of
from corral.http.metrics import Metrics
from corral.http.rate_limits import Buckets, Rate, retry_after
from corral.http.token_cache import Callers
from corral.kernel.errors import CorralError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
ErrorPage = Callable[[Request, int, str], Response]

log = logging.getLogger("corral.http")

COOKIE = "corral_token"
LOOKS = "/static/"  # what a page looks like; a stranger is told that a token is needed in style
CALLED = "/channels/"  # platforms call there; they sign what they say, and have no token
AGENTS = ("/api/", "/mcp")  # what an agent's own token opens
READS = frozenset({"GET", "HEAD"})
PROGRAMS = ("/api", CALLED, "/healthz", "/mcp", "/metrics")  # who asks there wants JSON, not a page

# How much a caller may ask for; a page, its parts and what it fetches are many calls at once.
RATES = {"full": Rate(5_000, 10_000), "read": Rate(5_000, 10_000), "agent": Rate(100, 400)}
STRANGERS = Rate(20, 100)
PLATFORMS = Rate(500, 5_000)
STRANGER = "stranger:"
MOST_STRANGERS = 64  # concurrent calls without a token, mostly of chat platforms
MOST_OF_AGENT = 16  # calls of one agent at once: those that wait have 64 threads for all


class Guard:
    def __init__(
        self,
        app: App,
        *,
        store: Corral,
        callers: Callers,
        metrics: Metrics,
        allowed_hosts: Collection[str],
        error_page: ErrorPage | None = None,
        most_at_once: int = 512,
        rates: dict[str, Rate] | None = None,
    ) -> None:
        self._app = app
        self._store = store
        self._callers = callers
        self._metrics = metrics
        self._hosts = frozenset(host.lower().strip("[]") for host in allowed_hosts)
        self._error_page = error_page
        self.most = most_at_once
        self.going = 0
        self.strangers = 0
        """Calls without a token, included in `going`."""
        self.going_of: Counter[str] = Counter()
        """Of each agent."""
        self._buckets = Buckets()
        self._bodies = Bodies()
        self._rates = rates or RATES
        self._threads = CapacityLimiter(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(send)
        began = time.monotonic()
        try:
            await self._admit(scope, receive, answer)
        except CorralError as error:
            await self._complain(scope, answer, problem_of(error))
        except Problem as problem:
            await self._complain(scope, answer, problem)
        except Exception:
            log.exception("A request failed: %s %s", scope["method"], scope["path"])
            await self._complain(
                scope,
                answer,
                Problem(500, "internal", "Corral made a mistake; its log says more. Report it."),
            )
        finally:
            took = time.monotonic() - began
            self._metrics.note(scope["method"], _route_of(scope), answer.status, took)

    async def _admit(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        headers = dict(reversed(scope["headers"]))  # of two with one name, the first counts
        self._check_host(headers)
        if scope["method"] not in READS:
            _check_origin(scope, headers)
        secret = _secret_of(scope, headers)
        given = _given_in_link(scope)
        who = await self._who(scope, given or secret)
        if who is None:
            self._check_stranger(scope, headers)
        else:
            self._check_connection(scope, who)
            who, origin = await self._acting(scope, who)
            self._check_scope(scope, who)
            if given is not None:
                await _remember(scope, answer, given)
                return
            scope.setdefault("state", {}).update(
                who=who, store=self._callers.store_of(who, self._store, origin)
            )
        limit = STRANGER_BODY if who is None else AGENT_BODY if who.agent else KNOWN_BODY
        caller = who.id if who is not None else _address_of(scope)
        place = Place(self, who)
        scope.setdefault("state", {}).update(
            place=place, check_body=lambda body: check_json(body, limit)
        )
        try:
            length = headers.get(b"content-length", b"0")
            body = self._bodies.begin(receive, length, caller, limit)
            try:
                await self._app(scope, body.receive, answer)
            finally:
                body.end()
        finally:
            place.leave()

    # -- who calls ------------------------------------------------------------------------------

    async def _who(self, scope: Scope, secret: str | None) -> Who | None:
        """Whose secret it is; None without one. A bad one is refused, and cannot be tried fast."""
        if secret is None:
            return None
        who = self._callers.known(secret)
        if who is None:
            try:
                who = await to_thread.run_sync(self._callers.look_up, secret, limiter=self._threads)
            except Problem:
                # Counted for those who are refused alone, so that they cannot lock others out.
                self._allow(STRANGER + _address_of(scope), STRANGERS)
                raise
        self._allow(who.id, self._rates[who.scope.partition(":")[0]])
        return who

    def _check_connection(self, scope: Scope, who: Who) -> None:
        """Assign the connection to the caller; raises Problem 429 beyond the limit."""
        connection: Connection | None = scope.get(CONNECTION)
        if connection is None:  # called without a server, by a test
            return
        if not connection.pool.prove(connection, who.id, is_agent=who.agent is not None):
            raise Problem(
                429,
                "too_many",
                f"The token {who.name} has too many open connections. Close some.",
                headers={"connection": "close", **retry_after(1)},
            )

    async def _acting(self, scope: Scope, who: Who) -> tuple[Who, str | None]:
        """Return the caller and the run of its process. A process inside a run acts as the run's
        agent, also when it shows a person's token."""
        connection: Connection | None = scope.get(CONNECTION)
        if connection is None or who.agent is not None or scope["method"] in READS:
            return who, None
        if not connection.is_identified:
            client, server = scope["client"], scope["server"]
            find = self._store.run_of_peer
            connection.identity = await to_thread.run_sync(
                find, client, server[1], limiter=self._threads
            )
            connection.is_identified = True
        identity = connection.identity
        if identity is None:
            return who, None
        if identity.run is None:
            raise Problem(
                403,
                "refused",
                "The process that makes this call cannot be seen, and runs are going on, so it "
                f"cannot use {who.name}, which is a person's token. Keep the connection open until "
                "the answer has come, and call from a process that other processes of its user can "
                "inspect.",
            )
        if identity.agent is None:
            raise Problem(
                403,
                "refused",
                f"The token {who.name} belongs to a person, and this call comes from a process in "
                f"{identity.run}, which has no agent. Call from outside the run.",
                run=identity.run,
            )
        scope_of = f"agent:{identity.agent_id}"
        return (
            Who(who.id, who.name, scope_of, identity.actor, identity.agent, who.expires_at),
            identity.run,
        )

    def _allow(self, caller: str, rate: Rate) -> None:
        wait = self._buckets.take(caller, rate)
        if wait:
            raise Problem(
                429,
                "too_many",
                f"That is more than {rate.per_second:,.0f} calls a second; try again in a moment.",
                headers=retry_after(wait),
            )

    def _check_stranger(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Without a token there is little to be had."""
        path = scope["path"]
        if path.startswith(CALLED) and scope["method"] == "POST":
            self._allow(STRANGER + CALLED + _address_of(scope), PLATFORMS)
        elif path != "/healthz" and not path.startswith(LOOKS):
            raise _unknown(headers)

    # -- what is allowed ------------------------------------------------------------------------

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        given = headers.get(b"host", b"").decode("latin-1")
        if host_name(given) not in self._hosts:
            raise Problem(
                403,
                "refused",
                f"{given!r} is not the name of this server; call it by one of "
                f"{', '.join(sorted(self._hosts))}, or allow more when it is started.",
                host=given,
            )

    def _check_scope(self, scope: Scope, who: Who) -> None:
        if scope["method"] not in READS and not who.may_write:
            raise Problem(
                403,
                "refused",
                f"The token {who.name} may only read; use one of full scope.",
                scope=who.scope,
            )
        if who.agent is not None and not scope["path"].startswith(AGENTS):
            raise Problem(
                403,
                "refused",
                f"The token {who.name} is an agent's, and opens /api and /mcp alone.",
                scope=who.scope,
            )

    # -- answering ------------------------------------------------------------------------------

    async def _complain(self, scope: Scope, answer: "_Answer", problem: Problem) -> None:
        if answer.started:
            return  # half an answer is out; the connection is closed behind it
        if self._error_page is not None and not scope["path"].startswith(PROGRAMS):
            page = self._error_page(Request(scope), problem.status, problem.message)
            page.headers.update(problem.headers)
            await page(scope, _nothing, answer)
            return
        headers = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        await answer.whole(problem.status, body_of(problem), [JSON, *headers])


class Place:
    """A request's place among those that are being answered; a stream gives it up early."""

    def __init__(self, guard: Guard, who: Who | None = None) -> None:
        self._agent = who.agent if who is not None else None
        going, most = guard.going, guard.most
        if who is None and guard.strangers >= MOST_STRANGERS:
            going = most = MOST_STRANGERS
        if self._agent is not None and guard.going_of[self._agent] >= MOST_OF_AGENT:
            going = most = MOST_OF_AGENT  # one that hangs on to its calls stands in nobody's way
        if going >= most:
            raise Problem(
                429,
                "too_many",
                f"{most} calls are being answered already; try again in a moment.",
                headers=retry_after(1),
            )
        self._is_stranger = who is None
        guard.going += 1
        guard.strangers += self._is_stranger
        if self._agent is not None:
            guard.going_of[self._agent] += 1
        self._guard: Guard | None = guard

    def leave(self) -> None:
        if self._guard is not None:
            self._guard.going -= 1
            self._guard.strangers -= self._is_stranger
            if self._agent is not None:
                self._guard.going_of[self._agent] -= 1
                self._guard.going_of += Counter()  # what is at 0 goes
            self._guard = None


class _Answer:
    """The way back, on which every answer gets the headers that protect a browser."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            headers += SECURITY
            if b"cache-control" not in names:
                headers.append(NO_STORE)
            message = {**message, "headers": headers}
        await self._send(message)

    async def whole(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", str(len(body)).encode())
        start = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
        await self(start)
        await self._send({"type": "http.response.body", "body": body})


def _route_of(scope: Scope) -> str:
    """A name for what was asked for, out of a bounded number of them."""
    state = scope.get("state") or {}
    if "call" in state:
        return str(state["call"])
    route = scope.get("route")
    return str(getattr(route, "path", None) or "other")


def host_name(given: str) -> str:
    """The name in a Host header, without its port."""
    if given.startswith("["):
        return given[1:].partition("]")[0].lower()
    return given.partition(":")[0].lower()


def _check_origin(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """A page of another origin must not write with the browser's cookie."""
    origin = headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"none")
    own = headers.get(b"host", b"").decode("latin-1").lower()
    foreign = origin is not None and urlsplit(origin.decode("latin-1").lower()).netloc != own
    if foreign or site == b"cross-site":
        raise Problem(
            403,
            "refused",
            "That write came from a page of another origin; call from this server's own pages, or "
            "without an Origin header.",
            origin=(origin or site).decode("latin-1"),
        )


def _secret_of(scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if secret and kind.lower() == "bearer":
        return secret.strip()
    for name, value in scope["headers"]:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, kept = part.strip().partition("=")
                if key == COOKIE:
                    return str(kept)
    return None


def _given_in_link(scope: Scope) -> str | None:
    """The secret in a link to a page, `/?token=…`, as the command line prints it."""
    query: bytes = scope["query_string"]
    if b"token=" not in query or scope["method"] != "GET" or scope["path"].startswith(PROGRAMS):
        return None
    return dict(parse_qsl(query.decode("latin-1"))).get("token")


async def _remember(scope: Scope, answer: _Answer, secret: str) -> None:
    """Let the browser keep the secret, and take it out of the address."""
    left = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1"), True)]
    query = urlencode([(name, value) for name, value in left if name != "token"])
    path = "/" + scope.get("raw_path", scope["path"].encode()).decode("latin-1").lstrip("/\\")
    cookie = f"{COOKIE}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000"
    headers = [
        (b"location", (path + (f"?{query}" if query else "")).encode("latin-1")),
        (b"set-cookie", cookie.encode()),
    ]
    await answer.whole(303, b"", headers)


def _unknown(headers: dict[bytes, bytes]) -> Problem:
    return Problem(
        401,
        "unauthenticated",
        "A token is needed: send `Authorization: Bearer …`, or open the link that `corral up` "
        "prints.",
        headers={"www-authenticate": "Bearer"},
    )


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def _nothing() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}
