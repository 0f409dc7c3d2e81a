"""The ASGI application: middleware, API routes, streams, and the pages it is given."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from corral.api import Corral
from corral.http.errors import ApiError
from corral.http.feed import EventFeed
from corral.http.health import HealthEndpoint
from corral.http.metrics import Metrics
from corral.http.middleware.authentication import AuthenticationMiddleware
from corral.http.middleware.body_limits import BodyLimitMiddleware
from corral.http.middleware.concurrency import ConcurrencyMiddleware
from corral.http.middleware.error_responses import ErrorMiddleware, ErrorPage
from corral.http.middleware.origin import OriginMiddleware
from corral.http.middleware.rate_limits import Rate
from corral.http.middleware.request_metrics import RequestMetricsMiddleware
from corral.http.middleware.security_headers import SecurityHeadersMiddleware
from corral.http.plain_endpoints import (
    receive_webhook,
    show_docs,
    show_docs_style,
    show_metrics,
    show_openapi,
    show_server,
)
from corral.http.router import ApiRouter
from corral.http.streams import EventStream, OutputStream
from corral.http.token_cache import TokenCache

RECORD_USES_SECONDS = 2.0

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def create_app(
    store: Corral,
    *,
    pages: Sequence[BaseRoute] = (),
    status: Callable[[], Any] | None = None,
    error_page: ErrorPage | None = None,
    allowed_hosts: Collection[str] = LOOPBACK_HOSTS,
    rates: dict[str, Rate] | None = None,
) -> Starlette:
    """Create the application that the daemon serves on an open store.

    `pages` are served beside the API, behind the same middleware: their requests have `state.who`
    (the identity of the token) and `state.store` (a store that acts as it). `error_page` renders
    errors of pages. `status` returns the state of the daemon, for `/healthz` and `/metrics`.
    `allowed_hosts` are the host names, without ports, that a request may name.

    Every request needs a token of the store (`store.tokens`). Call `app.state.end()` before
    stopping the server, from any thread: it ends streams and waiting calls.
    """
    tokens = TokenCache(store)
    health = HealthEndpoint(store, status)
    feed = EventFeed(store, on_event=tokens.handle_event)
    router = ApiRouter()
    metrics = Metrics()
    app = Starlette(
        routes=[
            Route("/api", show_server),
            Route("/api/", show_server),
            Route("/api/docs", show_docs),
            Route("/api/docs.css", show_docs_style),
            Route("/api/openapi.json", show_openapi),
            Route("/api/events", EventStream(router, feed), methods=["GET"]),
            Route("/api/runs/{run}/output", OutputStream(router), methods=["GET"]),
            Mount("/api", app=router),
            Route("/healthz", health.healthz),
            Route("/metrics", show_metrics),
            Route("/channels/{channel}", receive_webhook, methods=["POST"]),
            *pages,
        ],
        middleware=[
            Middleware(RequestMetricsMiddleware, metrics=metrics),
            Middleware(SecurityHeadersMiddleware),
            Middleware(ErrorMiddleware, error_page=error_page),
            Middleware(OriginMiddleware, allowed_hosts=allowed_hosts),
            Middleware(AuthenticationMiddleware, store=store, tokens=tokens, rates=rates),
            Middleware(ConcurrencyMiddleware),
            Middleware(BodyLimitMiddleware),
        ],
        exception_handlers={HTTPException: _raise_api_error},
        lifespan=_make_lifespan(feed, tokens),
    )

    def end() -> None:
        router.is_stopping = True
        feed.end()

    app.state.end = end
    app.state.router, app.state.store = router, store
    app.state.metrics, app.state.feed = metrics, feed
    return app


def _make_lifespan(
    feed: EventFeed, tokens: TokenCache
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return the context in which the server runs: the feed and the record of token uses."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await feed.start()
        recorder = asyncio.create_task(_record_token_uses(tokens))
        try:
            yield
        finally:
            recorder.cancel()
            await feed.close()

    return lifespan


async def _record_token_uses(tokens: TokenCache) -> None:
    """Record the use of tokens in the background while the server runs."""
    limiter = CapacityLimiter(1)
    while True:
        await asyncio.sleep(RECORD_USES_SECONDS)
        # Abandoned at shutdown: a store that is not writable must not delay it.
        await to_thread.run_sync(tokens.record_uses, limiter=limiter, abandon_on_cancel=True)


async def _raise_api_error(request: Request, error: Exception) -> Response:
    """Convert errors of the router, so that the middleware answers them like all others."""
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "invalid"}
    message = error.detail
    if error.status_code == 404:
        message = f"{request.url.path} does not exist. See / for all pages."
    elif error.status_code == 405:
        message = f"{request.url.path} does not support {request.method}."
    code = codes.get(error.status_code, "invalid" if error.status_code < 500 else "internal")
    raise ApiError(error.status_code, code, message, headers=dict(error.headers or {}))
