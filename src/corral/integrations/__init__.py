"""Adapters for agent frameworks that store their state in Corral.

Each module needs its framework to be installed.
"""

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from corral.api import Corral
from corral.api import open as open_store

P = ParamSpec("P")
R = TypeVar("R")


def resolve_store(store: Corral | str | Path | None, token: str | None) -> tuple[Corral, bool]:
    """Return an open store, and whether the caller must close it.

    `store` is an open store, a URL or path, or None for the user's own store.
    """
    if isinstance(store, Corral):
        return store, False
    return open_store(store, token=token), True


async def run_shielded(operation: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Run `operation` in a thread, and wait for it even if the caller is cancelled.

    The write may be committed already, and a later write must not overtake it.
    """
    import asyncio

    call = partial(copy_context().run, operation, *args, **options)
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        raise
