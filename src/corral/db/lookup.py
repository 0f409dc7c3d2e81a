"""Finding a row by an id that a person typed: whole, or any unique prefix of it."""

from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.kernel.ids import LENGTH, id_range

CANDIDATES = 6

# Where a kind of thing is not listed under its own name.
_LISTS = {
    "run": "corral ps -a",
    "output": "corral ps -a",
    "letter": "corral mail list",
    "occurrence": "corral schedule list",
    "round": "corral race list",
    "attempt": "corral race list",
    "verdict": "corral race list",
}


def list_of(kind: str) -> str:
    """The command that lists all of a kind."""
    return _LISTS.get(kind, f"corral {kind} list")


def no_such(kind: str, id: str | int) -> NotFound:
    return NotFound(
        f"There is no {kind} {id}; `{list_of(kind)}` shows those that there are.", kind=kind, id=id
    )


class IdColumn:
    """The ids of one kind of thing."""

    def __init__(self, kind: str, prefix: str, table: str) -> None:
        self.kind = kind
        self.prefix = prefix
        self._length = len(prefix) + 1 + LENGTH
        self._within = Statement(
            f"SELECT id FROM {table} WHERE id >= :low AND id < :high ORDER BY id LIMIT {CANDIDATES}"
        )

    def resolve(self, tx: Tx, typed: str) -> str:
        """The one whole id that `typed` stands for; NotFound or Ambiguous otherwise."""
        try:
            low, high = id_range(self.prefix, typed)
        except Invalid as error:
            shown = f"`{list_of(self.kind)}` shows those that there are."
            raise Invalid(f"{error.message[:-1]}; {shown}", **error.details) from None
        found = [row[0] for row in tx.run(self._within, low=low, high=high)]
        if not found:
            raise self.missing(typed)
        if len(found) > 1 and found[0] != low:
            more = ", …" if len(found) == CANDIDATES else ""
            raise Ambiguous(
                f"{typed!r} fits several of kind {self.kind}: {', '.join(found)}{more}; "
                "type some more of it.",
                kind=self.kind,
                candidates=found,
            )
        return str(found[0])

    def find(self, tx: Tx, typed: str) -> str:
        """Return the full id for `typed`, as a filter for a list. An unknown id is returned
        unchanged: rows may still refer to a deleted object."""
        if self.is_whole(typed):
            return typed
        try:
            return self.resolve(tx, typed)
        except NotFound:
            if typed.startswith(f"{self.prefix}_"):
                return typed
            raise

    def is_whole(self, typed: str) -> bool:
        """Whether it has the form of a whole id; whether it exists, the statement that wants it
        will tell."""
        return len(typed) == self._length and typed.startswith(f"{self.prefix}_")

    def missing(self, typed: str) -> NotFound:
        return no_such(self.kind, typed)
