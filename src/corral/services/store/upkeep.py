"""Writes that should run before a read: expiry, indexing, recovery.

A read must not wait until the store is writable: a process that was stopped during a write blocks
all other writers for half a minute, and a store may be read-only. So the write runs on its own
thread, and the read waits for it only for a moment, then returns the stored state.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from corral.kernel.errors import StoreUnavailable

if TYPE_CHECKING:
    from corral.db.database import Database

T = TypeVar("T")

SECONDS = 1.0
"""An unblocked write takes a thousandth of that."""


def try_upkeep(
    database: "Database", name: str, work: Callable[[], T], *, seconds: float = SECONDS
) -> T | None:
    """Run `work` on a thread and return its result. None: it takes longer than `seconds`, the store
    is not writable, or upkeep of this name is in progress. Other errors are raised."""
    going = database.upkeep
    if name in going:
        return None
    going.add(name)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            # Closing the store waits for writes in progress, so this one must give up in time.
            with database.writing_within(seconds):
                results.append(work())
        except StoreUnavailable:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            going.discard(name)

    thread = threading.Thread(target=run, name=f"corral-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return results[0] if results else None
