"""Metrics of each request: method, route, status and duration."""

import time

from corral.asgi import AsgiApp, AsgiMessage, Receive, Scope, Send
from corral.http.metrics import Metrics
from corral.http.middleware.http_middleware import HttpMiddleware


class RequestMetricsMiddleware(HttpMiddleware):
    """Records every request, also those that other middleware refuses."""

    def __init__(self, app: AsgiApp, *, metrics: Metrics) -> None:
        super().__init__(app)
        self._metrics = metrics

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = time.monotonic()
        status = 0

        async def send_and_note_status(message: AsgiMessage) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note_status)
        finally:
            duration = time.monotonic() - started_at
            self._metrics.record(scope["method"], _find_route_name(scope), status, duration)


def _find_route_name(scope: Scope) -> str:
    """Return a label for metrics. The number of labels is bounded: it never contains an id."""
    state = scope.get("state") or {}
    if "route_name" in state:
        return str(state["route_name"])
    route = scope.get("route")
    return str(getattr(route, "path", None) or "other")
