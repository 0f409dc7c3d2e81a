from corral.api.operation import Room, read, write
from corral.domain.search import ops
from corral.domain.search.model import Hit
from corral.kernel.pagination import Page
from corral.services.store.upkeep import try_upkeep

BATCHES = 20  # of 1,000 turns: what one search catches up with at the most
CATCH_UP_SECONDS = 10.0  # maximum wait for thousands of turns to be indexed


class Search(Room):
    """Finding words in what was said, printed and noted."""

    noun = "search"

    index_turns = write(ops.index_turns)
    _find = read(ops.find)
    behind = read(ops.behind, mode="one")

    def find(
        self,
        text: str,
        *,
        kind: str | None = None,
        project: str | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> Page[Hit]:
        """Passages that hold all the words of a text, newest first; of a kind, or of a project.

        What was said a moment ago is made findable first, up to some thousands of turns; `behind`
        tells whether there are more.
        """
        found = self._find(text, kind=kind, project=project, limit=limit, after=after)
        if after is None and self.behind() and self._is_caught_up():
            return self._find(text, kind=kind, project=project, limit=limit)
        return found

    def _is_caught_up(self) -> bool:
        """Whether more turns were indexed; bounded, since the store may not be writable."""
        done = try_upkeep(self._database, "search", self.catch_up, seconds=CATCH_UP_SECONDS)
        return bool(done)

    def catch_up(self, *, batches: int = BATCHES) -> int:
        """Make turns findable that are not yet, in short transactions; gives back how many."""
        done = 0
        for _ in range(batches):
            indexed = self.index_turns(limit=ops.BATCH)
            done += indexed
            if not indexed or not self.behind():
                break
        return done
