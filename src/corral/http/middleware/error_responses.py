"""Responses for exceptions: JSON for programs, a page for people."""

import logging
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from corral.asgi import AsgiApp, AsgiMessage, Receive, Scope, Send
from corral.http.errors import ApiError, convert_corral_error, encode_error_body
from corral.http.middleware.http_middleware import JSON_PATHS, HttpMiddleware
from corral.kernel.errors import CorralError

log = logging.getLogger("corral.http")


class ErrorPage(Protocol):
    """Render an error response as HTML."""

    def __call__(
        self, request: Request, status: int, message: str, *, code: str, reason: str | None
    ) -> Response: ...


class ErrorMiddleware(HttpMiddleware):
    """Answers every exception with a message; a traceback goes only to the log."""

    def __init__(self, app: AsgiApp, *, error_page: ErrorPage | None = None) -> None:
        """`error_page` renders the errors of pages; without it, all errors are JSON."""
        super().__init__(app)
        self._error_page = error_page

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def send_and_note_start(message: AsgiMessage) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note_start)
            return
        except CorralError as corral_error:
            error = convert_corral_error(corral_error)
        except ApiError as api_error:
            error = api_error
        except Exception:
            log.exception("Request failed: %s %s", scope["method"], scope["path"])
            error = ApiError(
                500, "internal", "Internal error. See the daemon's log; please report it."
            )
        if not is_started:  # else it is too late for a status; the server closes the connection
            await self._render(scope, error)(scope, receive, send)

    def _render(self, scope: Scope, error: ApiError) -> Response:
        if self._error_page is None or scope["path"].startswith(JSON_PATHS):
            return Response(
                encode_error_body(error), error.status, error.headers, media_type="application/json"
            )
        page = self._error_page(
            Request(scope),
            error.status,
            error.message,
            code=error.code,
            reason=error.details.get("reason"),
        )
        page.headers.update(error.headers)
        return page
