"""Frameworks for agents that keep what they know in Corral. Each module needs its framework."""

from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from corral.library import Corral
from corral.library import open as open_store

R = TypeVar("R")


def store_of(given: Corral | str | Path | None, token: str | None) -> tuple[Corral, bool]:
    """The store that was given, else the one at the URL; and whether it is ours to close."""
    if isinstance(given, Corral):
        return given, False
    return open_store(given, token=token), True


async def to_its_end(change: Awaitable[R]) -> R:
    """Wait for a change also when whoever asked for it is cancelled: it may be kept already, and
    what comes next must not overtake it."""
    import asyncio

    task = asyncio.ensure_future(change)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
