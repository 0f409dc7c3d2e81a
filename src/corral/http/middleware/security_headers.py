"""Security headers, added to every response."""

from corral.asgi import AsgiMessage, Send

_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; "
    # 'unsafe-inline' for styles only: xterm.js creates style sheets at run time.
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
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


class SecureResponse:
    """An ASGI `send` that adds the security headers, and `no-store` unless Cache-Control is set."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.status = 0

    async def __call__(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            headers += SECURITY_HEADERS
            if b"cache-control" not in names:
                headers.append(NO_STORE)
            message = {**message, "headers": headers}
        await self._send(message)

    async def send_body(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Send a complete response."""
        length = (b"content-length", str(len(body)).encode())
        await self({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self._send({"type": "http.response.body", "body": body})
