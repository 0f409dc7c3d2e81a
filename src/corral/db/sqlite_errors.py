"""SQLite's errors as sentences that name the next step."""

from pathlib import Path

import apsw

from corral.db.write_fence import refusal
from corral.kernel.errors import Conflict, CorralError, Invalid, StoreUnavailable


def no_room(where: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"There is no room left for the store {where}; free some space and try again. "
        "Nothing was changed.",
        reason="full",
        path=where,
    )


def replaced(where: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {where} is not usable through this handle: {why}. The last write may be lost. "
        "Put the file back if that was a mistake, then open the store again.",
        reason="replaced",
        path=where,
    )


def hard_linked(where: str, links: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {where} has {links} names (hard links). Processes that open it by different "
        "names would overwrite each other's data. Find the others with `find / -xdev -samefile "
        f"{where}` and remove them, or use a symlink instead.",
        reason="hard_linked",
        path=where,
    )


def log_full(where: str, size: int, cause: str, holder: int | None) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {where} accepts no writes: its write-ahead log has {size // 1_048_576:,} MiB, "
        f"because {cause}. Nothing was changed.",
        reason="log_full",
        path=where,
        holder=holder,
    )


def translate(error: apsw.Error, path: Path) -> CorralError:
    """An engine's error as a sentence that names the next step."""
    where = str(path)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                f"Another program holds the store {where}; close it (a database browser, perhaps) "
                "and try again.",
                reason="locked",
                path=where,
            )
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreUnavailable(
                f"{where} is damaged or no Corral store ({error}); restore a back-up with "
                "`corral db restore FILE`, or give another path with --store.",
                reason="corrupt",
                path=where,
            )
        case apsw.ConstraintError():
            return refusal(str(error), where) or Conflict(f"The store refused it: {error}.")
        case apsw.FullError():
            return no_room(where)
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StoreUnavailable(
                f"The store {where} cannot be opened for writing ({error}); correct its "
                "permissions or give another path with --store.",
                reason="unwritable",
                path=where,
            )
        case apsw.IOError():
            return StoreUnavailable(
                f"The disk under the store {where} failed ({error}); check its space and health. "
                "Nothing was changed.",
                reason="io",
                path=where,
            )
        case apsw.TooBigError():
            return Invalid("That is too large to be stored; put it into a file and give the path.")
        case _:
            return StoreUnavailable(
                f"SQLite refused: {error} (store {where}). This should not "
                "happen; please report it.",
                reason="engine",
                path=where,
            )
