"""Authentication and authorization: who sends a request, and whether the request is allowed."""

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers

from corral.api import Corral
from corral.asgi import READ_METHODS, AsgiApp, Receive, Scope, Send
from corral.http.connections import CONNECTION_KEY, HttpConnection
from corral.http.errors import ApiError
from corral.http.middleware import rate_limits
from corral.http.middleware.credentials import (
    missing_token_error,
    read_link_token,
    read_token,
    redirect_with_cookie,
)
from corral.http.middleware.http_middleware import (
    JSON_PATHS,
    STATIC,
    WEBHOOKS,
    HttpMiddleware,
    find_client_address,
    is_agent_path,
)
from corral.http.middleware.rate_limits import Rate, RateLimiter, retry_after
from corral.http.token_cache import TokenCache
from corral.services.tokens import TokenIdentity


class AuthenticationMiddleware(HttpMiddleware):
    """Sets `state.who` and `state.store`, or refuses the request.

    Requests are limited per second: by token, or by address for webhooks and invalid tokens.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        store: Corral,
        tokens: TokenCache,
        rates: dict[str, Rate] | None = None,
    ) -> None:
        super().__init__(app)
        self._store = store
        self._tokens = tokens
        self._rates = rates or rate_limits.RATES
        self._rate_limiter = RateLimiter()
        self._threads = CapacityLimiter(4)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        link_secret = None
        if not scope["path"].startswith(JSON_PATHS):
            link_secret = read_link_token(scope)
        secret = link_secret or read_token(Headers(scope=scope))
        who = await self._authenticate(scope, secret)
        state = scope.setdefault("state", {})
        if who is None:
            self._check_anonymous(scope)
        else:
            _bind_connection(scope, who)
            _check_token_scope(scope, who)
            who, run = await self._resolve_identity(scope, who)
            _check_token_scope(scope, who)  # the agent of a run has less scope than the token
            if link_secret is not None:
                await redirect_with_cookie(scope, link_secret)(scope, receive, send)
                return
            state.update(who=who, store=self._tokens.store_for(who, self._store, run))
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope, secret: str | None) -> TokenIdentity | None:
        """Return the identity of the token; None without one.

        Raises ApiError 401 for an invalid token, and 429 after many from one address. The limit
        does not prevent the lookup: a valid token is accepted from every address.
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
                    f"anonymous:{find_client_address(scope)}", rate_limits.ANONYMOUS_RATE
                )
                raise
        self._rate_limiter.check(who.id, self._rates[who.scope.partition(":")[0]])
        return who

    def _check_anonymous(self, scope: Scope) -> None:
        """Allow webhooks, `/healthz` and static files without a token; raises ApiError 401."""
        path = scope["path"]
        if path.startswith(WEBHOOKS) and scope["method"] == "POST":
            self._rate_limiter.check(
                f"webhook:{find_client_address(scope)}", rate_limits.WEBHOOK_RATE
            )
        elif path != "/healthz" and not path.startswith(STATIC):
            raise missing_token_error()

    async def _resolve_identity(
        self, scope: Scope, who: TokenIdentity
    ) -> tuple[TokenIdentity, str | None]:
        """Return the identity that the request acts as, and the run of the calling process.

        A process inside a run acts as the run's agent, also with a person's token: an agent that
        finds such a token on disk must not gain a person's rights. A process of a check is refused.
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
                f"Token {who.name} belongs to a person, and the calling process is part of a check "
                "or cannot be identified. Keep the connection open until the response arrives, and "
                "call from a process that other processes of its user can inspect.",
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
        agent_identity = TokenIdentity(
            id=who.id,
            name=who.name,
            scope=scope_name,
            actor=identity.actor,
            agent=identity.agent,
            expires_at=who.expires_at,
        )
        return agent_identity, identity.run


def _bind_connection(scope: Scope, who: TokenIdentity) -> None:
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


def _check_token_scope(scope: Scope, who: TokenIdentity) -> None:
    """Raise ApiError 403 unless the token's scope allows the method and the path."""
    if scope["method"] not in READ_METHODS and not who.may_write:
        raise ApiError(
            403,
            "refused",
            f"Token {who.name} is read-only. Use a token with full scope.",
            scope=who.scope,
        )
    if who.agent is not None and not is_agent_path(scope["path"]):
        raise ApiError(
            403,
            "refused",
            f"Token {who.name} belongs to an agent and may use only /api and /mcp.",
            scope=who.scope,
        )
