"""The middleware in front of all handlers: it runs the checks of this package and answers errors.

A handler finds in its request's state: `who` (the identity of the token), `store` (a store that
acts as the caller), `slot` (its place among concurrent requests) and `check_body`. Every failure is
answered with a message; a traceback goes only to the log.
"""

import logging
import time
from collections.abc import Collection
from typing import Protocol

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from corral.api import Corral
from corral.asgi import READ_METHODS, AsgiApp, AsgiMessage, Receive, Scope, Send
from corral.http.connections import CONNECTION_KEY, HttpConnection
from corral.http.errors import JSON, ApiError, error_body, from_corral_error
from corral.http.metrics import Metrics
from corral.http.middleware import rate_limits
from corral.http.middleware.authentication import (
    missing_token,
    read_link_token,
    read_token,
    redirect_with_cookie,
)
from corral.http.middleware.body_limits import BodyBudget, check_json, limit_for
from corral.http.middleware.concurrency import MAX_REQUESTS, ConcurrencyLimiter
from corral.http.middleware.origin import check_host, check_origin
from corral.http.middleware.rate_limits import Rate, RateLimiter, retry_after
from corral.http.middleware.security_headers import SecureResponse
from corral.http.token_cache import TokenCache
from corral.kernel.errors import CorralError
from corral.services.tokens import TokenIdentity


class ErrorPage(Protocol):
    """Render an error response as HTML."""

    def __call__(
        self, request: Request, status: int, message: str, *, code: str, reason: str | None
    ) -> Response: ...


log = logging.getLogger("corral.http")

STATIC = "/static/"  # readable without a token: the page that asks for one is styled
WEBHOOKS = "/channels/"  # chat platforms sign their requests instead of using a token
AGENT_PATHS = ("/api/", "/mcp")  # the paths that an agent's token may use
JSON_PATHS = ("/api", WEBHOOKS, "/healthz", "/mcp", "/metrics")  # errors are JSON, not a page


class AccessMiddleware:
    """Authenticates, authorizes and limits requests."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        store: Corral,
        tokens: TokenCache,
        metrics: Metrics,
        allowed_hosts: Collection[str],
        error_page: ErrorPage | None = None,
        max_requests: int = MAX_REQUESTS,
        rates: dict[str, Rate] | None = None,
    ) -> None:
        self._app = app
        self._store = store
        self._tokens = tokens
        self._metrics = metrics
        self._hosts = frozenset(host.lower().strip("[]") for host in allowed_hosts)
        self._error_page = error_page
        self._rates = rates or rate_limits.RATES
        self._rate_limiter = RateLimiter()
        self._concurrency = ConcurrencyLimiter(max_requests)
        self._bodies = BodyBudget()
        self._threads = CapacityLimiter(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        response = SecureResponse(send)
        started_at = time.monotonic()
        try:
            await self._handle(scope, receive, response)
        except CorralError as error:
            await self._send_error(scope, response, from_corral_error(error))
        except ApiError as error:
            await self._send_error(scope, response, error)
        except Exception:
            log.exception("Request failed: %s %s", scope["method"], scope["path"])
            await self._send_error(
                scope,
                response,
                ApiError(
                    500, "internal", "Internal error. See the daemon's log; please report it."
                ),
            )
        finally:
            duration = time.monotonic() - started_at
            self._metrics.record(scope["method"], _route_name(scope), response.status, duration)

    async def _handle(self, scope: Scope, receive: Receive, response: SecureResponse) -> None:
        headers = dict(reversed(scope["headers"]))  # the first of two headers with one name wins
        check_host(headers, self._hosts)
        if scope["method"] not in READ_METHODS:
            check_origin(headers)
        link_secret = None
        if not scope["path"].startswith(JSON_PATHS):
            link_secret = read_link_token(scope)
        who = await self._authenticate(scope, link_secret or read_token(scope, headers))
        state = scope.setdefault("state", {})
        if who is None:
            self._check_anonymous(scope)
        else:
            self._bind_connection(scope, who)
            who, run = await self._resolve_identity(scope, who)
            _check_scope(scope, who)
            if link_secret is not None:
                await redirect_with_cookie(scope, response, link_secret)
                return
            state.update(who=who, store=self._tokens.store_for(who, self._store, run))
        limit = limit_for(who)
        caller = who.id if who is not None else _client_address(scope)
        slot = self._concurrency.acquire(who)
        state.update(slot=slot, check_body=lambda body: check_json(body, limit))
        try:
            length = headers.get(b"content-length", b"0")
            body = self._bodies.begin(receive, length, caller, limit)
            try:
                await self._app(scope, body.receive, response)
            finally:
                body.end()
        finally:
            slot.release()

    # -- authentication -------------------------------------------------------------------------

    async def _authenticate(self, scope: Scope, secret: str | None) -> TokenIdentity | None:
        """Return the identity of the token; None without one.

        Raises ApiError 401 for an invalid token, and 429 when an address tries many.
        """
        if secret is None:
            return None
        who = self._tokens.get_cached(secret)
        if who is None:
            try:
                who = await to_thread.run_sync(self._tokens.look_up, secret, limiter=self._threads)
            except ApiError:
                # Only invalid tokens count against the address: an attacker behind the same address
                # cannot lock out callers with valid ones.
                self._rate_limiter.check(
                    f"anonymous:{_client_address(scope)}", rate_limits.ANONYMOUS_RATE
                )
                raise
        self._rate_limiter.check(who.id, self._rates[who.scope.partition(":")[0]])
        return who

    def _check_anonymous(self, scope: Scope) -> None:
        """Allow webhooks, `/healthz` and static files without a token; raises ApiError 401."""
        path = scope["path"]
        if path.startswith(WEBHOOKS) and scope["method"] == "POST":
            self._rate_limiter.check(f"webhook:{_client_address(scope)}", rate_limits.WEBHOOK_RATE)
        elif path != "/healthz" and not path.startswith(STATIC):
            raise missing_token()

    def _bind_connection(self, scope: Scope, who: TokenIdentity) -> None:
        """Count the connection for the token; raises ApiError 429 beyond the limit."""
        connection: HttpConnection | None = scope.get(CONNECTION_KEY)
        if connection is None:  # no server: a test calls the app directly
            return
        if not connection.pool.bind_token(connection, who.id, is_agent=who.agent is not None):
            raise ApiError(
                429,
                "too_many",
                f"Token {who.name} has too many open connections. Close some.",
                headers={"connection": "close", **retry_after(1)},
            )

    async def _resolve_identity(
        self, scope: Scope, who: TokenIdentity
    ) -> tuple[TokenIdentity, str | None]:
        """Return the identity that the request acts as, and the run of the calling process.

        A process inside a run acts as the run's agent, also with a person's token: an agent that
        finds such a token on disk must not gain a person's rights.
        """
        connection: HttpConnection | None = scope.get(CONNECTION_KEY)
        if connection is None or who.agent is not None or scope["method"] in READ_METHODS:
            return who, None
        if not connection.is_identified:
            client, server = scope["client"], scope["server"]
            connection.identity = await to_thread.run_sync(
                self._store.run_of_peer, client, server[1], limiter=self._threads
            )
            connection.is_identified = True
        identity = connection.identity
        if identity is None:
            return who, None
        if identity.run is None:
            raise ApiError(
                403,
                "refused",
                f"Token {who.name} belongs to a person, and the calling process cannot be "
                "identified while runs are active. Keep the connection open until the response "
                "arrives, and call from a process that other processes of its user can inspect.",
                reason="caller_unknown",
            )
        if identity.agent is None:
            raise ApiError(
                403,
                "refused",
                f"Token {who.name} belongs to a person, and the calling process is part of "
                f"{identity.run}, which has no agent. Call from outside the run.",
                run=identity.run,
            )
        scope_name = f"agent:{identity.agent_id}"
        return (
            TokenIdentity(
                who.id, who.name, scope_name, identity.actor, identity.agent, who.expires_at
            ),
            identity.run,
        )

    # -- errors ---------------------------------------------------------------------------------

    async def _send_error(self, scope: Scope, response: SecureResponse, error: ApiError) -> None:
        if response.started:
            return  # too late for a status; the server closes the connection
        if self._error_page is not None and not scope["path"].startswith(JSON_PATHS):
            page = self._error_page(
                Request(scope),
                error.status,
                error.message,
                code=error.code,
                reason=error.details.get("reason"),
            )
            page.headers.update(error.headers)
            await page(scope, _disconnected, response)
            return
        headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await response.send_body(error.status, error_body(error), [JSON, *headers])


def _check_scope(scope: Scope, who: TokenIdentity) -> None:
    """Raise ApiError 403 unless the token's scope allows the method and the path."""
    if scope["method"] not in READ_METHODS and not who.may_write:
        raise ApiError(
            403,
            "refused",
            f"Token {who.name} is read-only. Use a token with full scope.",
            scope=who.scope,
        )
    if who.agent is not None and not scope["path"].startswith(AGENT_PATHS):
        raise ApiError(
            403,
            "refused",
            f"Token {who.name} belongs to an agent and may use only /api and /mcp.",
            scope=who.scope,
        )


def _route_name(scope: Scope) -> str:
    """Return a label for metrics. The number of labels is bounded: it never contains an id."""
    state = scope.get("state") or {}
    if "route_name" in state:
        return str(state["route_name"])
    route = scope.get("route")
    return str(getattr(route, "path", None) or "other")


def _client_address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def _disconnected() -> AsgiMessage:
    return {"type": "http.disconnect"}
