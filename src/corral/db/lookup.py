"""Resolution of ids that a person typed: complete, or any unique prefix."""

from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.kernel.ids import ID_LENGTH, id_range

CANDIDATES = 6
"""Maximum number of ids in the message of an ambiguous prefix."""

# Types that are not listed by `corral TYPE list`.
_LIST_COMMANDS = {
    "run": "corral ps -a",
    "output": "corral ps -a",
    "letter": "corral mail list",
    "host_request": "corral request list",
    "occurrence": "corral schedule list",
    "round": "corral race list",
    "attempt": "corral race list",
    "verdict": "corral race list",
}


def list_command(kind: str) -> str:
    """Return the command that lists the objects of a type."""
    return _LIST_COMMANDS.get(kind, f"corral {kind} list")


def not_found(kind: str, id: str | int) -> NotFound:
    return NotFound(
        f"No {kind} has the id {id}. List them with `{list_command(kind)}`.",
        kind=kind,
        id=id,
    )


class IdColumn:
    """The ids of one type."""

    def __init__(self, kind: str, prefix: str, table: str) -> None:
        self.kind = kind
        self.prefix = prefix
        self._length = len(prefix) + 1 + ID_LENGTH
        self._in_range = Statement(
            f"SELECT id FROM {table} WHERE id >= :low AND id < :high ORDER BY id LIMIT {CANDIDATES}"
        )

    def resolve(self, tx: Tx, typed: str) -> str:
        """Return the only id that `typed` can mean; raises Invalid, NotFound or Ambiguous."""
        try:
            low, high = id_range(self.prefix, typed)
        except Invalid as error:
            hint = f"`{list_command(self.kind)}` lists the existing ones."
            raise Invalid(f"{error.message} {hint}", **error.details) from None
        ids = [row[0] for row in tx.run(self._in_range, low=low, high=high)]
        if not ids:
            raise self.not_found(typed)
        # An exact match is not ambiguous.
        if len(ids) > 1 and ids[0] != low:
            more = ", …" if len(ids) == CANDIDATES else ""
            raise Ambiguous(
                f"{typed!r} matches several of type {self.kind}: {', '.join(ids)}{more}. Type more "
                "characters.",
                kind=self.kind,
                candidates=ids,
            )
        return str(ids[0])

    def find(self, tx: Tx, typed: str) -> str:
        """Return the full id for `typed`, as a filter for a list.

        An unknown full id is returned unchanged: rows may still refer to a deleted object.
        """
        if self.is_full_id(typed):
            return typed
        try:
            return self.resolve(tx, typed)
        except NotFound:
            if typed.startswith(f"{self.prefix}_"):
                return typed
            raise

    def is_full_id(self, typed: str) -> bool:
        """Whether a text has the form of a complete id; the object need not exist."""
        return len(typed) == self._length and typed.startswith(f"{self.prefix}_")

    def not_found(self, typed: str) -> NotFound:
        return not_found(self.kind, typed)
