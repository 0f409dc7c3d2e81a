"""`/healthz`: whether the store answers; with a token, also the state of the daemon."""

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

TIMEOUT_SECONDS = 3.0
"""Monitoring needs a quick answer; operations wait much longer for a database server to return."""


class HealthEndpoint:
    """The handler of `/healthz`."""

    def __init__(self, store: Corral, status: Callable[[], Any] | None) -> None:
        self._store = store
        self._status = status
        self._check: asyncio.Future[int] | None = None

    async def healthz(self, request: Request) -> Response:
        """Answer 200 when the store is usable, else 503. Details require a token."""
        await self._check_store()
        has_token = hasattr(request.state, "who")
        body = await to_thread.run_sync(self._encode_health, has_token)
        return Response(body, media_type="application/json")

    async def _check_store(self) -> None:
        """Raise StoreUnavailable when the store does not answer in time.

        All concurrent requests share one check, so a hanging store blocks one thread only.
        """
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(to_thread.run_sync(self._store.db.schema_version))
            # The check may fail after all requests gave up: retrieve its exception, else asyncio
            # logs it.
            self._check.add_done_callback(lambda check: check.cancelled() or check.exception())
        try:
            await asyncio.wait_for(asyncio.shield(self._check), TIMEOUT_SECONDS)
        except TimeoutError:
            raise StoreUnavailable(
                f"The store did not answer within {TIMEOUT_SECONDS:.0f} s. Run `corral doctor`.",
                reason="unreachable",
            ) from None

    def _encode_health(self, has_token: bool) -> bytes:
        fields: dict[str, Any] = {"ok": True, "name": "corral", "version": __version__}
        if has_token and self._status is not None:
            fields["status"] = self._status()
        return msgspec.json.encode(fields)
