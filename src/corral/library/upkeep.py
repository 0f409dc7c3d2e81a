"""Writes that a read would like to have done first: expiring, indexing, recovering.

A read must not wait for the store to be writable: a writer that was stopped in the middle of a
write holds up all others for half a minute, and a store may be readable only. So such a write is
done on a thread of its own, and the read waits for it for a moment; what it then shows is as the
store knows it.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from corral.kernel.errors import StoreUnavailable

if TYPE_CHECKING:
    from corral.db.database import Database

T = TypeVar("T")

SECONDS = 1.0
"""A write that is not held up takes a thousandth of that."""


def try_upkeep(
    database: "Database", name: str, work: Callable[[], T], *, seconds: float = SECONDS
) -> T | None:
    """What `work` returns; None when that takes longer than `seconds`, when the store cannot be
    written now, or when the upkeep of this name is going on already. Other errors are raised."""
    going = database.upkeep
    if name in going:
        return None
    going.add(name)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
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
