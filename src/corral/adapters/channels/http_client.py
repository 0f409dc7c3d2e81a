"""HTTP client for the APIs of platforms. Failures map to send outcomes."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.adapters.channels.contract import (
    FailedMessage,
    RejectedMessage,
    SendOutcome,
    StoredFile,
    UnconfirmedMessage,
)
from corral.kernel.open_files import require_unused

if TYPE_CHECKING:
    import ssl

    import httpx

DEFAULT_TIMEOUT = 30.0
FILE_TIMEOUT = 60.0
DEFAULT_CONTENT_TYPE = "application/octet-stream"
MAX_RETRY_MS = 3_600_000


class PlatformError(Exception):
    """A failed API request; `outcome` is its meaning for a message."""

    def __init__(self, outcome: SendOutcome, status: int | None = None) -> None:
        super().__init__(getattr(outcome, "reason", "the request failed"))
        self.outcome = outcome
        self.status = status


@cache
def _create_tls_context() -> "ssl.SSLContext":
    """Return the system's TLS context; cached, because loading it takes longer than a request."""
    import httpx

    return httpx.create_ssl_context()


class ApiClient:
    """A client for one platform, with a base URL and common headers.

    Error messages contain no part of the request, because URLs may contain a token.
    """

    def __init__(self, base: str, headers: Mapping[str, str] | None = None) -> None:
        try:
            import httpx
        except ImportError:
            raise ValueError(
                "this channel kind needs the package httpx; run `pip install 'corral[matrix]'`"
            ) from None
        self._httpx = httpx
        self._client = httpx.Client(
            base_url=base,
            headers=dict(headers or {}),
            timeout=DEFAULT_TIMEOUT,
            follow_redirects=False,
            verify=_create_tls_context(),
        )

    def close(self) -> None:
        self._client.close()

    def request_json(
        self, method: str, path: str, *, seconds: float = DEFAULT_TIMEOUT, **options: Any
    ) -> Any:
        """Send a request and return the JSON of the response. Raises PlatformError."""
        response = self._request(method, path, seconds, options)
        try:
            return response.json()
        except ValueError:
            raise PlatformError(UnconfirmedMessage("the response is not JSON")) from None

    def upload(self, method: str, path: str, data: bytes, type: str, **options: Any) -> Any:
        """Send bytes and return the JSON of the response, with the timeout for files."""
        headers = {"Content-Type": type}
        return self.request_json(
            method, path, seconds=FILE_TIMEOUT, content=data, headers=headers, **options
        )

    def upload_to(self, method: str, url: str, data: bytes, type: str) -> None:
        """Send bytes to a URL that the platform returned; the response body is ignored."""
        self._request(
            method, url, FILE_TIMEOUT, {"content": data, "headers": {"Content-Type": type}}
        )

    def download(self, path: str, limit: int) -> bytes:
        """Download a file of at most `limit` bytes. Raises PlatformError."""
        httpx = self._httpx
        try:
            with self._client.stream("GET", path) as response:
                _check(response.status_code, response.headers)
                parts, size = [], 0
                for part in response.iter_bytes():
                    size += len(part)
                    if size > limit:
                        raise PlatformError(
                            RejectedMessage(f"the file is larger than {limit:,} bytes")
                        )
                    parts.append(part)
                return b"".join(parts)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PlatformError(
                FailedMessage(f"the download failed ({type(error).__name__})")
            ) from None

    def _request(
        self, method: str, path: str, seconds: float, options: Mapping[str, Any]
    ) -> "httpx.Response":
        httpx = self._httpx
        try:
            response = self._client.request(method, path, timeout=seconds, **options)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            # The request was not sent.
            raise PlatformError(
                FailedMessage(f"the platform is unreachable ({type(error).__name__})")
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PlatformError(
                UnconfirmedMessage(f"the connection broke ({type(error).__name__})")
            ) from None
        error_body = {} if response.is_success else _read_error(response)
        _check(
            response.status_code,
            response.headers,
            _describe(error_body),
            _parse_body_retry(error_body),
        )
        return response


def read_stored_file(file: StoredFile) -> bytes:
    """Return the content of a stored file. Raises PlatformError if it is gone."""
    try:
        require_unused(str(file.path))
        return Path(str(file.path)).read_bytes()
    except OSError as error:
        raise PlatformError(RejectedMessage(f"cannot read {file.name}: {error.strerror}")) from None


def _check(
    status: int, headers: Mapping[str, str], description: str = "", retry_ms: int | None = None
) -> None:
    """Raise PlatformError unless the status is a success."""
    if 200 <= status < 300:
        return
    reason = f"the platform returned {status}{description}"
    if status == 429:
        raise PlatformError(
            FailedMessage(reason, retry_ms=retry_ms or _parse_header_retry(headers)), status
        )
    if status in (401, 407, 408):
        # A problem of our configuration, not of the message: it can be retried once that is fixed.
        hint = "; the token is invalid" if status == 401 else ""
        raise PlatformError(FailedMessage(reason + hint), status)
    if 400 <= status < 500:
        raise PlatformError(RejectedMessage(reason), status)
    raise PlatformError(UnconfirmedMessage(reason), status)


def _parse_header_retry(headers: Mapping[str, str]) -> int | None:
    value = headers.get("retry-after", "")
    return min(int(value) * 1_000, MAX_RETRY_MS) if value.isdecimal() else None


def _read_error(response: "httpx.Response") -> dict[str, Any]:
    """Return the JSON object of an error response; empty if there is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _describe(body: Mapping[str, Any]) -> str:
    """Return the platform's error code or description, as a suffix."""
    code = body.get("errcode") or body.get("error") or body.get("description") or ""
    return f": {str(code)[:200]}" if code else ""


def _parse_body_retry(body: Mapping[str, Any]) -> int | None:
    """Return the retry delay in the body: Matrix has it in milliseconds, Telegram in seconds."""
    parameters = body.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    delay = body.get("retry_after_ms") or (seconds * 1_000 if isinstance(seconds, int) else None)
    return min(delay, MAX_RETRY_MS) if isinstance(delay, int) and delay > 0 else None
