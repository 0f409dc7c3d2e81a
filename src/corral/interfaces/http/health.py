"""`/healthz`: whether the store answers; whoever shows a token is told how the daemon is, too."""

from collections.abc import Callable
from typing import Any

import msgspec
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.library import Corral


class Health:
    def __init__(self, store: Corral, status: Callable[[], Any] | None) -> None:
        self._store = store
        self._status = status

    async def healthz(self, request: Request) -> Response:
        """200 when the store answers, else 503 and why; strangers learn no more than that."""
        known = hasattr(request.state, "who")
        return Response(await to_thread.run_sync(self._tell, known), media_type="application/json")

    def _tell(self, known: bool) -> bytes:
        self._store.db.schema_version()  # raises when the store cannot be used
        told: dict[str, Any] = {"ok": True, "version": __version__}
        if known and self._status is not None:
            told["status"] = self._status()
        return msgspec.json.encode(told)
