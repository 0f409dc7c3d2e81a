"""The endpoints that are neither operations nor streams: reference, metrics and webhooks.

They find the store, the router and the metrics in the state of the application.
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.api import Corral
from corral.http import openapi
from corral.http.router import ApiRouter
from corral.services.tokens import TokenIdentity


async def show_server(request: Request) -> Response:
    """Answer `GET /api`: versions, the store's time and the caller's token."""
    router: ApiRouter = request.app.state.router
    fields = await router.run_in_thread(
        lambda: _describe_server(request.state.store, request.state.who)
    )
    return Response(msgspec.json.encode(fields), media_type="application/json")


def _describe_server(store: Corral, who: TokenIdentity) -> dict[str, Any]:
    return {
        "version": __version__,
        "schema_version": store.db.schema_version(),
        "engine": store.db.engine,
        "now": store.now(),
        "token": {"id": who.id, "name": who.name, "scope": who.scope},
    }


async def show_docs(_: Request) -> Response:
    """Answer `GET /api/docs`: the reference of all operations as a page."""
    return Response(openapi.render_docs_page(), media_type="text/html")


async def show_docs_style(_: Request) -> Response:
    """Answer `GET /api/docs.css`: the style sheet of the reference."""
    return Response(openapi.render_docs_style(), media_type="text/css")


async def show_openapi(_: Request) -> Response:
    """Answer `GET /api/openapi.json`: the OpenAPI document of all operations."""
    return Response(openapi.render_openapi_document(), media_type="application/json")


async def show_metrics(request: Request) -> Response:
    """Answer `GET /metrics` in the text format of Prometheus."""
    state = request.app.state
    text = await state.router.run_in_thread(lambda: state.metrics.render(state.store, state.feed))
    return Response(text, media_type="text/plain; version=0.0.4")


async def receive_webhook(request: Request) -> Response:
    """Store what a chat platform sends to `POST /channels/NAME`, then answer."""
    router: ApiRouter = request.app.state.router
    store: Corral = request.app.state.store
    name, headers = request.path_params["channel"], dict(request.headers)
    await router.run_in_thread(lambda: store.channels.get(name))  # 404 before reading the body
    body = await request.body()
    request.state.check_body(body)
    accepted = await router.run_in_thread(lambda: store.chat.receive_webhook(name, headers, body))
    return Response(accepted.answer, media_type=accepted.content_type)
