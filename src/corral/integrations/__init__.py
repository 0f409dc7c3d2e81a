"""Frameworks for agents that keep what they know in Corral. Each module needs its framework."""

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


def store_of(given: Corral | str | Path | None, token: str | None) -> tuple[Corral, bool]:
    """The store that was given, else the one at the URL; and whether it is ours to close."""
    if isinstance(given, Corral):
        return given, False
    return open_store(given, token=token), True


async def to_its_end(change: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Make a change on a thread, and wait for it also when whoever asked for it is cancelled: it
    may be kept already, and what comes next must not overtake it."""
    import asyncio

    call = partial(copy_context().run, change, *args, **options)
    made = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(made)
    except asyncio.CancelledError:
        while not made.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({made})
        raise
