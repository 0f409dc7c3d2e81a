"""The application: the guard, the API, and whatever pages it is given."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from corral.api import Corral
from corral.http.api import Api, Handler, about, answer
from corral.http.errors import Problem
from corral.http.feed import Feed
from corral.http.health import Health
from corral.http.metrics import Metrics
from corral.http.middleware import ErrorPage, Guard, Receive, Scope, Send
from corral.http.openapi import document, page
from corral.http.rate_limits import Rate
from corral.http.streams import Streams
from corral.http.token_cache import Callers

USE_SECONDS = 2.0  # how often the use of tokens is recorded

LOCAL = ("127.0.0.1", "localhost", "::1")


def create_app(
    store: Corral,
    *,
    pages: Sequence[BaseRoute] = (),
    status: Callable[[], Any] | None = None,
    error_page: ErrorPage | None = None,
    allowed_hosts: Collection[str] = LOCAL,
    rates: dict[str, Rate] | None = None,
) -> Starlette:
    """Everything that the daemon serves, on an open store.

    `pages` are served beside the API, behind the same guard: their requests have `state.who` (whose
    token it is) and `state.store` (the store in their name). `error_page` makes the answer when a
    page cannot be had. `status` tells how the daemon is, for `/healthz` and `/metrics`. Callers
    show a token of the store (`store.tokens`); there is no other way in. `allowed_hosts` are the
    names, without ports, by which this server may be called. Whoever ends the server calls
    `app.state.end()` first, from any thread: streams and waiting calls are then let go.
    """
    callers = Callers(store)
    health = Health(store, status)
    feed = Feed(store, watch=callers.watch)
    api = Api()
    streams = Streams(api, feed)
    metrics = Metrics()
    api.others = {
        "": _about(api),
        "docs": _constant(page, b"text/html; charset=utf-8"),
        "openapi.json": _constant(document, b"application/json"),
        "events": streams.events,
        "runs/*/output": streams.output,
    }

    async def told(_: Request) -> Response:
        text = await api.run(lambda: metrics.text(store, feed))
        return Response(text, media_type="text/plain; version=0.0.4")

    async def called(request: Request) -> Response:
        """What a platform tells us: it is answered when it is stored."""
        name, headers = request.path_params["channel"], dict(request.headers)
        await api.run(lambda: store.channels.get(name))  # 404 before the body is read
        body = await request.body()
        request.state.check_body(body)
        accepted = await api.run(lambda: store.gateway.accept(name, headers, body))
        return Response(accepted.answer, media_type=accepted.content_type)

    @asynccontextmanager
    async def serving(_: Starlette) -> AsyncIterator[None]:
        await feed.start()
        noting = asyncio.create_task(_note_uses(callers))
        try:
            yield
        finally:
            noting.cancel()
            await feed.close()

    app = Starlette(
        routes=[
            Route("/api", api),
            Mount("/api", app=api),
            Route("/healthz", health.healthz),
            Route("/metrics", told),
            Route("/channels/{channel}", called, methods=["POST"]),
            *pages,
        ],
        middleware=[
            Middleware(
                Guard,
                store=store,
                callers=callers,
                metrics=metrics,
                allowed_hosts=allowed_hosts,
                error_page=error_page,
                rates=rates,
            )
        ],
        exception_handlers={HTTPException: _as_problem},
        lifespan=serving,
    )

    def end() -> None:
        api.stopping = True
        feed.end()

    app.state.end = end
    return app


async def _note_uses(callers: Callers) -> None:
    """Record the use of tokens in the background while the server runs."""
    limiter = CapacityLimiter(1)
    while True:
        await asyncio.sleep(USE_SECONDS)
        # Abandoned at shutdown: a store that is not writable must not delay it.
        await to_thread.run_sync(callers.note_uses, limiter=limiter, abandon_on_cancel=True)


def _about(api: Api) -> Handler:
    async def tell(scope: Scope, receive: Receive, send: Send, parts: list[str]) -> None:
        state = scope["state"]
        told = await api.run(lambda: about(state["store"], state["who"]))
        await answer(send, msgspec.json.encode(told))

    return tell


def _constant(make: Callable[[], bytes], kind: bytes) -> Handler:
    async def tell(scope: Scope, receive: Receive, send: Send, parts: list[str]) -> None:
        await answer(send, make(), kind=(b"content-type", kind))

    return tell


async def _as_problem(request: Request, error: Exception) -> Response:
    """What the router refuses is answered by the guard, like everything else."""
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "invalid"}
    message = error.detail
    if error.status_code == 404:
        message = f"There is nothing at {request.url.path}; / shows what there is."
    elif error.status_code == 405:
        message = f"{request.url.path} cannot be asked by {request.method}."
    code = codes.get(error.status_code, "invalid" if error.status_code < 500 else "internal")
    raise Problem(error.status_code, code, message, headers=dict(error.headers or {}))
