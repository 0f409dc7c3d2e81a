"""Requests to a platform's HTTP API, and what their failures mean for a message."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.adapters.channels.contract import Failed, File, Outcome, Refused, Unknown
from corral.kernel.open_files import require_unused

if TYPE_CHECKING:
    import ssl

    import httpx

SECONDS = 30.0
FILE_SECONDS = 60.0
PLAIN = "application/octet-stream"
LONGEST_RETRY_MS = 3_600_000


class Trouble(Exception):
    """A request without a good answer; `outcome` says what that means for what was asked."""

    def __init__(self, outcome: Outcome, status: int | None = None) -> None:
        super().__init__(getattr(outcome, "reason", "it failed"))
        self.outcome = outcome
        self.status = status


@cache
def _trusted() -> "ssl.SSLContext":
    """The certificates that this machine trusts: read once, it takes longer than a request."""
    import httpx

    return httpx.create_ssl_context()


class Api:
    """A platform's API, at a base URL, with the headers that every request has.

    Nothing of a request stands in an error: an address may hold a token.
    """

    def __init__(self, base: str, headers: Mapping[str, str] | None = None) -> None:
        try:
            import httpx
        except ImportError:
            raise ValueError(
                "this kind of channel needs one more package; run `pip install 'corral[matrix]'`"
            ) from None
        self._httpx = httpx
        self._client = httpx.Client(
            base_url=base,
            headers=dict(headers or {}),
            timeout=SECONDS,
            follow_redirects=False,
            verify=_trusted(),
        )

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, *, seconds: float = SECONDS, **given: Any) -> Any:
        """The JSON of an answer; Trouble when there is none, or it says no."""
        answer = self._request(method, path, seconds, given)
        try:
            return answer.json()
        except ValueError:
            raise Trouble(Unknown("it answered something that is no JSON")) from None

    def put(self, method: str, path: str, data: bytes, type: str, **given: Any) -> Any:
        """The same with a body of bytes, which may take its time."""
        headers = {"Content-Type": type}
        return self.ask(method, path, seconds=FILE_SECONDS, content=data, headers=headers, **given)

    def send_away(self, method: str, url: str, data: bytes, type: str) -> None:
        """Send bytes to an address that the platform gave, whatever it answers there."""
        self._request(
            method, url, FILE_SECONDS, {"content": data, "headers": {"Content-Type": type}}
        )

    def fetch(self, path: str, most: int) -> bytes:
        """The bytes of a file, if there are no more than so many."""
        httpx = self._httpx
        try:
            with self._client.stream("GET", path) as answer:
                _check(answer.status_code, answer.headers)
                parts, size = [], 0
                for part in answer.iter_bytes():
                    size += len(part)
                    if size > most:
                        raise Trouble(Refused(f"it has more than {most:,} bytes"))
                    parts.append(part)
                return b"".join(parts)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Trouble(Failed(f"it cannot be fetched ({type(error).__name__})")) from None

    def _request(
        self, method: str, path: str, seconds: float, given: Mapping[str, Any]
    ) -> "httpx.Response":
        httpx = self._httpx
        try:
            answer = self._client.request(method, path, timeout=seconds, **given)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            # No word of it was sent.
            raise Trouble(Failed(f"it cannot be reached ({type(error).__name__})")) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Trouble(Unknown(f"the line broke ({type(error).__name__})")) from None
        told = {} if answer.is_success else _told(answer)
        _check(answer.status_code, answer.headers, _said(told), _asked_pause(told))
        return answer


def contents(file: File) -> bytes:
    """The bytes of a private file; Trouble when it is gone."""
    try:
        require_unused(str(file.path))
        return Path(str(file.path)).read_bytes()
    except OSError as error:
        raise Trouble(Refused(f"{file.name} cannot be read: {error.strerror}")) from None


def _check(
    status: int, headers: Mapping[str, str], said: str = "", pause_ms: int | None = None
) -> None:
    """Trouble unless a status is a good one."""
    if 200 <= status < 300:
        return
    why = f"it answered {status}{said}"
    if status == 429:
        raise Trouble(Failed(why, retry_ms=pause_ms or _pause(headers)), status)
    if status in (401, 407, 408):
        # Our own matter, and to be mended: the message is as good as it was.
        mend = "; it does not take our token" if status == 401 else ""
        raise Trouble(Failed(why + mend), status)
    if 400 <= status < 500:
        raise Trouble(Refused(why), status)
    raise Trouble(Unknown(why), status)


def _pause(headers: Mapping[str, str]) -> int | None:
    given = headers.get("retry-after", "")
    return min(int(given) * 1_000, LONGEST_RETRY_MS) if given.isdecimal() else None


def _told(answer: "httpx.Response") -> dict[str, Any]:
    """What stands in an answer that says no, if it is an object."""
    try:
        told = answer.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _said(told: Mapping[str, Any]) -> str:
    """What the platform says of itself, in its own short words."""
    word = told.get("errcode") or told.get("error") or told.get("description") or ""
    return f": {str(word)[:200]}" if word else ""


def _asked_pause(told: Mapping[str, Any]) -> int | None:
    """How long we are asked to wait, where that stands in the answer: Matrix says it in
    milliseconds, Telegram in seconds."""
    parameters = told.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    asked = told.get("retry_after_ms") or (seconds * 1_000 if isinstance(seconds, int) else None)
    return min(asked, LONGEST_RETRY_MS) if isinstance(asked, int) and asked > 0 else None
