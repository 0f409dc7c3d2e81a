"""Errors of the HTTP API: their status codes and their JSON form."""

from typing import Any

import msgspec

from corral.kernel.errors import CorralError

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
    """Convert an error of the library."""
    headers = {"retry-after": "1"} if error.http_status == 503 else None
    return ApiError(error.http_status, error.code, error.message, headers=headers, **error.details)


def encode_error_body(error: ApiError) -> bytes:
    """Return `{"error": {"code", "message", "details"}}` as JSON."""
    fields = {"code": error.code, "message": error.message, "details": error.details}
    return msgspec.json.encode({"error": fields}, enc_hook=str)
