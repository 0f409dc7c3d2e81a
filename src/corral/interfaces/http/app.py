"""The application: the guard, the API, and whatever pages it is given."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corral.interfaces.http.answers import Problem
from corral.interfaces.http.callers import Callers
from corral.interfaces.http.guard import ErrorPage, Guard
from corral.interfaces.http.health import Health
from corral.interfaces.http.limits import Rate
from corral.library import Corral

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
    names, without ports, by which this server may be called.
    """
    callers = Callers(store)
    health = Health(store, status)

    @asynccontextmanager
    async def serving(_: Starlette) -> AsyncIterator[None]:
        yield

    return Starlette(
        routes=[Route("/healthz", health.healthz), *pages],
        middleware=[
            Middleware(
                Guard,
                store=store,
                callers=callers,
                allowed_hosts=allowed_hosts,
                error_page=error_page,
                rates=rates,
            )
        ],
        exception_handlers={HTTPException: _as_problem},
        lifespan=serving,
    )


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
