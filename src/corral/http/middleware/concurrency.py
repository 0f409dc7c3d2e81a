"""Limits on the requests that are in progress at the same time."""

from collections import Counter

from corral.asgi import AsgiApp, Receive, Scope, Send
from corral.http.errors import ApiError
from corral.http.middleware.http_middleware import HttpMiddleware
from corral.http.middleware.rate_limits import retry_after
from corral.services.tokens import TokenIdentity

MAX_REQUESTS = 512
MAX_ANONYMOUS = 64  # requests without a token, mostly of chat platforms
MAX_PER_AGENT = 16  # all waiting calls share 64 threads


class ConcurrencyMiddleware(HttpMiddleware):
    """Counts each request until its response is complete, or its handler releases `state.slot`."""

    def __init__(self, app: AsgiApp, *, max_requests: int = MAX_REQUESTS) -> None:
        super().__init__(app)
        self._limiter = ConcurrencyLimiter(max_requests)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        slot = state["slot"] = self._limiter.acquire(state.get("who"))
        try:
            await self._app(scope, receive, send)
        finally:
            slot.release()


class ConcurrencyLimiter:
    """Counts the requests in progress: in total, without a token, and by agent."""

    def __init__(self, limit: int = MAX_REQUESTS) -> None:
        self.limit = limit
        self.total = 0
        self.anonymous = 0
        """Requests without a token; included in `total`."""
        self.by_agent: Counter[str] = Counter()

    def acquire(self, who: TokenIdentity | None) -> "RequestSlot":
        """Count one more request of the caller; raises ApiError 429 when a limit is reached."""
        agent = who.agent if who is not None else None
        limit = None
        if agent is not None and self.by_agent[agent] >= MAX_PER_AGENT:
            limit = MAX_PER_AGENT
        elif who is None and self.anonymous >= MAX_ANONYMOUS:
            limit = MAX_ANONYMOUS
        elif self.total >= self.limit:
            limit = self.limit
        if limit is not None:
            raise ApiError(
                429,
                "too_many",
                f"Too many concurrent requests (limit {limit}). Try again in a moment.",
                headers=retry_after(1),
            )
        return RequestSlot(self, agent, is_anonymous=who is None)


class RequestSlot:
    """One request in progress. Streams release it early: they last for hours."""

    def __init__(
        self, limiter: ConcurrencyLimiter, agent: str | None, *, is_anonymous: bool
    ) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self._agent = agent
        self._is_anonymous = is_anonymous
        limiter.total += 1
        limiter.anonymous += is_anonymous
        if agent is not None:
            limiter.by_agent[agent] += 1

    def release(self) -> None:
        """Give the slot back. Idempotent."""
        limiter, self._limiter = self._limiter, None
        if limiter is None:
            return
        limiter.total -= 1
        limiter.anonymous -= self._is_anonymous
        if self._agent is not None:
            limiter.by_agent[self._agent] -= 1
            limiter.by_agent += Counter()  # removes agents whose count is 0
