"""Errors of the HTTP API: their status codes and their JSON form."""

from typing import Any

import msgspec

from corral.kernel.errors import CorralError

# By error code of the library. The command line maps the same codes to exit statuses.
STATUS_CODES = {
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

JSON = (b"content-type", b"application/json")


class ApiError(Exception):
    """An error response that no operation raised: a missing token, a bad header, a limit."""

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


def convert_corral_error(error: CorralError) -> ApiError:
    """Convert an error of the library; an unknown code becomes status 500."""
    status = STATUS_CODES.get(error.code, 500)
    headers = {"retry-after": "1"} if status == 503 else None
    return ApiError(status, error.code, error.message, headers=headers, **error.details)


def encode_error_body(error: ApiError) -> bytes:
    """Return `{"error": {"code", "message", "details"}}` as JSON."""
    fields = {"code": error.code, "message": error.message, "details": error.details}
    return msgspec.json.encode({"error": fields}, enc_hook=str)
