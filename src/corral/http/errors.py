"""What cannot be done is told in one form; and what every answer says to protect a browser."""

from typing import Any

import msgspec

from corral.kernel.errors import CorralError

# The library's errors, as HTTP tells them. The command line has exit codes for the same.
STATUS = {
    "invalid": 400,
    "not_found": 404,
    "refused": 403,
    "ambiguous": 409,
    "conflict": 409,
    "illegal_move": 409,
    "held": 423,
    "no_room": 409,
    "store_unavailable": 503,
}

_CONTENT = (
    "default-src 'none'; script-src 'self'; "
    # Scripts that draw (a terminal's cells) make style sheets of their own; nothing else may.
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

SECURITY: list[tuple[bytes, bytes]] = [
    (b"content-security-policy", _CONTENT.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Our own pages alone are told where a form was. Were none told, a browser would call its origin
    # "null", and a form of ours could not be told from that of another site.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
JSON = (b"content-type", b"application/json")


class Problem(Exception):
    """An answer that is no operation's error: a token, a header, a limit."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: dict[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}
        self.details = details


def problem_of(error: CorralError) -> Problem:
    status = STATUS.get(error.code, 500)
    headers = {"retry-after": "1"} if status == 503 else None
    return Problem(status, error.code, error.message, headers=headers, **error.details)


def body_of(problem: Problem) -> bytes:
    told = {
        "code": problem.code,
        "message": problem.message,
        "details": problem.details,
    }
    return msgspec.json.encode({"error": told}, enc_hook=str)
