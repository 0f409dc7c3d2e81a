"""Keyset pagination: a list that is read page by page along an index."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from corral.db.statement import Query
from corral.db.tx import Tx
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page, check_limit, decode_cursor, make_page

R = TypeVar("R")

SortKey = tuple[str | int, ...]


class Listing(Generic[R]):
    """A paginated list of records.

    - `query`: selects the rows beyond a sort key, in the order of that key, at most `:limit`.
    - `start`: the parameters of `query` that hold the sort key, with the values from which the
      first page starts. For a list that is newest first, these are `LAST_ID` or `LAST_NUMBER`.
    - `key`: returns the sort key of a record, in the order of `start`.
    - `scope`: parameters of `start` that the caller chooses and that are the same in all rows, such
      as the mailbox of a list. A cursor with another value belongs to another list.

    Each page is one index lookup, however long the list is.
    """

    def __init__(
        self,
        query: Query[R],
        *,
        start: Mapping[str, str | int],
        key: Callable[[R], SortKey],
        scope: Iterable[str] = (),
    ) -> None:
        self.query = query
        self.start = start
        self.key = key
        self.scope = scope

    def page(self, tx: Tx, *, after: str | None, limit: int, **params: Any) -> Page[R]:
        """Return the page after a cursor; raises Invalid for a bad or foreign cursor or limit.

        `params` are the other parameters of the query. They may also contain a parameter of
        `start`, to begin the first page elsewhere.
        """
        start = {name: params.get(name, value) for name, value in self.start.items()}
        position = dict(zip(start, decode_cursor(after, *start.values()), strict=True))
        if any(position[name] != params[name] for name in self.scope):
            raise Invalid(
                "The cursor belongs to another list. Pass it with the same filters.",
                value=after,
                reason="foreign_cursor",
            )
        rows = tx.all(self.query, **params | position | {"limit": check_limit(limit) + 1})
        return make_page(rows, limit, self.key)
