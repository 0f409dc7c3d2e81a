"""The output of a run, read over HTTP."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from corral.adapters.output.sealed_file import OutputChunk
from corral.api.remote import encode_query

if TYPE_CHECKING:
    from corral.adapters.http_client import DaemonClient, HttpResponse
    from corral.adapters.output.sealed_format import Data

POLL_SECONDS = 0.2
MAX_READ_BYTES = 1024 * 1024


class RemoteOutput:
    """A reader of a run's output, which is fetched in pieces."""

    def __init__(self, client: "DaemonClient", run_id: str, stream: str) -> None:
        self._client = client
        self._path = f"/api/runs/{quote(run_id, safe='')}/output"
        self._stream = stream

    @property
    def size(self) -> int:
        return int(self._request(limit=1).headers["x-size"])

    def lines(self, start: int, count: int) -> "list[Data]":
        return _split(self._request(line=start, count=count).body)

    def tail(self, count: int) -> "list[Data]":
        return _split(self._request(tail=count).body)

    def bytes(self, offset: int, length: int) -> "Data":
        data = b""
        while len(data) < length:
            part = self._request(offset=offset, limit=min(length - len(data), MAX_READ_BYTES))
            if not part.body:
                break
            data += part.body
            offset = int(part.headers["x-next-offset"])
        return data[:length]

    def follow(
        self,
        offset: int = 0,
        *,
        is_finished: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
    ) -> Iterator[OutputChunk]:
        """Yield text from `offset` on, as it is written, until `is_finished()` is true."""
        while True:
            ended = is_finished()  # before the read, so that text written before the end is read
            part = self._request(offset=offset, limit=MAX_READ_BYTES)
            if part.body:
                offset = int(part.headers["x-next-offset"])
                yield OutputChunk(offset, part.body)
            elif ended or part.headers["x-more"] == "false":
                return
            else:
                wait(POLL_SECONDS)

    def _request(self, **range_arguments: int) -> "HttpResponse":
        return self._client.request(
            "GET", self._path + encode_query({"stream": self._stream, **range_arguments})
        )


def _split(body: bytes) -> list[bytes]:
    return body.split(b"\n") if body else []
