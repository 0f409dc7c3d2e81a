"""Writes that run before a read, such as expiry, indexing or recovery.

A read must not wait until the store is writable: a process that was suspended during a write blocks
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

MAX_SECONDS = 1.0
"""Longest wait for the write; an unblocked one takes about a millisecond."""


def try_write_before_read(
    database: "Database", name: str, work: Callable[[], T], *, seconds: float = MAX_SECONDS
) -> T | None:
    """Run `work` on a thread and return its result.

    Returns None when it takes longer than `seconds`, the store is not writable, or a write of this
    name is in progress. Other errors are raised.
    """
    running = database.writes_before_reads
    if name in running:
        return None
    running.add(name)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            # Closing the store waits for writes in progress, so this one must end in time.
            with database.write_timeout(seconds):
                results.append(work())
        except StoreUnavailable:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            running.discard(name)

    thread = threading.Thread(target=run, name=f"corral-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return results[0] if results else None
