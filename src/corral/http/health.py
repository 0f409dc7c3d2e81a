"""`/healthz`: whether the store answers; whoever shows a token is told how the daemon is, too."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.api import Corral
from corral.kernel.errors import StoreUnavailable

PATIENCE = 3.0
"""Whoever watches a service wants an answer; calls wait much longer for a server to come back."""


class Health:
    def __init__(self, store: Corral, status: Callable[[], Any] | None) -> None:
        self._store = store
        self._status = status
        self._asked: asyncio.Future[int] | None = None

    async def healthz(self, request: Request) -> Response:
        """200 when the store answers, else 503 and why; strangers learn no more than that."""
        await self._store_answers()
        known = hasattr(request.state, "who")
        return Response(await to_thread.run_sync(self._tell, known), media_type="application/json")

    async def _store_answers(self) -> None:
        """Raises when the store cannot be used. While it is silent one question is out for all who
        come, however many they are."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(to_thread.run_sync(self._store.db.schema_version))
            # It may fail when nobody waits for it any more.
            self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        try:
            await asyncio.wait_for(asyncio.shield(self._asked), PATIENCE)
        except TimeoutError:
            raise StoreUnavailable(
                f"The store does not answer within {PATIENCE:.0f} s; `corral doctor` tells why.",
                reason="unreachable",
            ) from None

    def _tell(self, known: bool) -> bytes:
        told: dict[str, Any] = {"ok": True, "name": "corral", "version": __version__}
        if known and self._status is not None:
            told["status"] = self._status()
        return msgspec.json.encode(told)
