"""Security headers, added to every response."""

from corral.asgi import AsgiMessage, Receive, Scope, Send
from corral.http.middleware.http_middleware import HttpMiddleware

# Scripts and styles only from files of this server, none inline. xterm.js adds empty <style>
# elements to the page and fills them later: the hash of the empty text allows the elements, and
# `web/static/strict-styles.js` applies their rules through the CSS object model instead.
_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
_CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY_STYLE}; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

SECURITY_HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-security-policy", _CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: with that, browsers send `Origin: null` with forms, and a form of these pages
    # could not be distinguished from one of another site.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")


class SecurityHeadersMiddleware(HttpMiddleware):
    """Adds the security headers, and `no-store` unless Cache-Control is set."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {name for name, _ in headers}
                headers += SECURITY_HEADERS
                if b"cache-control" not in names:
                    headers.append(NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_headers)
