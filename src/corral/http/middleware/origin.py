"""Checks of the Host and Origin headers, against DNS rebinding and cross-site requests."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from corral.asgi import READ_METHODS, AsgiApp, Receive, Scope, Send
from corral.http.errors import ApiError
from corral.http.middleware.http_middleware import HttpMiddleware


class OriginMiddleware(HttpMiddleware):
    """Refuses requests for other hosts, and writes from other sites."""

    def __init__(self, app: AsgiApp, *, allowed_hosts: Collection[str]) -> None:
        super().__init__(app)
        self._hosts = frozenset(host.lower().strip("[]") for host in allowed_hosts)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        _check_host(headers, self._hosts)
        if scope["method"] not in READ_METHODS:
            _check_origin(headers)
        await self._app(scope, receive, send)


def _check_host(headers: Headers, allowed_hosts: Collection[str]) -> None:
    """Raise ApiError 403 unless the Host header names one of `allowed_hosts`.

    DNS rebinding: an attacker's domain can resolve to 127.0.0.1, and its pages would then share an
    origin with this server.
    """
    host = headers.get("host", "")
    if _parse_host_name(host) not in allowed_hosts:
        raise ApiError(
            403,
            "refused",
            f"Host {host!r} is not allowed. Use one of {', '.join(sorted(allowed_hosts))}, or "
            "allow this host when starting the server.",
            host=host,
        )


def _parse_host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _check_origin(headers: Headers) -> None:
    """Raise ApiError 403 for a cross-site request: it would carry the browser's cookie."""
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    host = headers.get("host", "").lower()
    is_foreign = origin is not None and urlsplit(origin.lower()).netloc != host
    if is_foreign or site == "cross-site":
        raise ApiError(
            403,
            "refused",
            "Cross-site write refused. Send it from this server's pages, or without an Origin "
            "header.",
            origin=origin or site,
        )
