"""Checks of the Host and Origin headers, against DNS rebinding and cross-site requests."""

from collections.abc import Collection
from urllib.parse import urlsplit

from corral.http.errors import ApiError


def check_host(headers: dict[bytes, bytes], allowed_hosts: Collection[str]) -> None:
    """Raise ApiError 403 unless the Host header names one of `allowed_hosts`.

    DNS rebinding: an attacker's domain can resolve to 127.0.0.1, and its pages would then share an
    origin with this server.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    if host_name(host) not in allowed_hosts:
        raise ApiError(
            403,
            "refused",
            f"Host {host!r} is not allowed. Use one of {', '.join(sorted(allowed_hosts))}, or "
            "allow this host when starting the server.",
            host=host,
        )


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def check_origin(headers: dict[bytes, bytes]) -> None:
    """Raise ApiError 403 for a cross-site request: it would carry the browser's cookie."""
    origin = headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"none")
    host = headers.get(b"host", b"").decode("latin-1").lower()
    is_foreign = origin is not None and urlsplit(origin.decode("latin-1").lower()).netloc != host
    if is_foreign or site == b"cross-site":
        raise ApiError(
            403,
            "refused",
            "Cross-site write refused. Send it from this server's pages, or without an Origin "
            "header.",
            origin=(origin or site).decode("latin-1"),
        )
