"""The check that a store has the schema of this program."""

from corral.db.database import Database
from corral.db.types import Finding
from corral.kernel.errors import Refused, StoreUnavailable


def check_schema(database: Database, *, thorough: bool = False) -> Finding:
    """Compare the applied migrations with those of this program.

    With `thorough`, also compare every table and index with what the migrations create.
    """
    from corral.db.migrations import latest_version, list_altered
    from corral.db.schema_drift import describe_differences, find_drift

    try:
        changed = list_altered(database)
        differences = find_drift(database) if thorough and not changed else []
    except StoreUnavailable as error:
        return Finding("schema", "broken", error.message)
    except Refused as error:
        return Finding("schema", "warning", error.message)
    if changed:
        return Finding(
            "schema",
            "broken",
            f"Migration {changed[0]} differs from the one of this program: another build created "
            "the store.",
        )
    if differences:
        return Finding(
            "schema",
            "warning" if all(difference.beside for difference in differences) else "broken",
            f"The schema differs from the migrations: {describe_differences(differences)}. "
            "`corral db move` copies the rows into a new store with the right schema.",
        )
    return Finding("schema", "ok", f"Version {latest_version()}, the version of this program.")
