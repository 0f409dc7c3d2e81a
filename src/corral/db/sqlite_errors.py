"""SQLite's errors as CorralErrors."""

from pathlib import Path

import apsw

from corral.db.write_guard import write_guard_error
from corral.kernel.errors import Conflict, CorralError, Invalid, StoreUnavailable


def disk_full_error(where: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"No disk space left for the store {where}. Free some space and try again. Nothing was "
        "changed.",
        reason="full",
        path=where,
    )


def replaced_error(where: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {where} is not usable through this handle: {why}. The last write may be lost. "
        "Put the file back if that was a mistake, then open the store again.",
        reason="replaced",
        path=where,
    )


def hard_link_error(where: str, links: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {where} has {links} names (hard links). Processes that open it by different "
        "names would overwrite each other's data. Find the others with `find / -xdev -samefile "
        f"{where}` and remove them, or use a symlink instead.",
        reason="hard_linked",
        path=where,
    )


def wal_full_error(where: str, size: int, cause: str, holder: int | None) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {where} accepts no writes: its write-ahead log has {size // 1_048_576:,} MiB, "
        f"because {cause}. Nothing was changed. Continue (`kill -CONT`) or end the process that "
        "reads the store.",
        reason="log_full",
        path=where,
        holder=holder,
    )


def translate(error: apsw.Error, path: Path) -> CorralError:
    """Return the CorralError for an error of SQLite."""
    where = str(path)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                f"The store {where} is locked by another program, such as a database browser. "
                "Close it and try again.",
                reason="locked",
                path=where,
            )
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreUnavailable(
                f"{where} is damaged or not a Corral store: {error}. Restore a backup with "
                "`corral db restore FILE`, or give another path with --store.",
                reason="corrupt",
                path=where,
            )
        case apsw.ConstraintError():
            return write_guard_error(str(error), where) or Conflict(
                f"The change violates a constraint of the store: {error}."
            )
        case apsw.FullError():
            return disk_full_error(where)
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StoreUnavailable(
                f"Cannot open the store {where} for writing: {error}. Correct its permissions, or "
                "give another path with --store.",
                reason="unwritable",
                path=where,
            )
        case apsw.IOError():
            return StoreUnavailable(
                f"The disk of the store {where} failed: {error}. Check its free space and health. "
                "Nothing was changed.",
                reason="io",
                path=where,
            )
        case apsw.TooBigError():
            return Invalid("The value is too large. Put it into a file and give the path.")
        case _:
            return StoreUnavailable(
                f"Unexpected error of SQLite: {error} (store {where}). Please report it.",
                reason="engine",
                path=where,
            )
