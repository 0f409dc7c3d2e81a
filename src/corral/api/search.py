"""Operations of `store.search`."""

from corral.api.operation import Resource, operation, read
from corral.domain.search import ops
from corral.domain.search.model import Hit
from corral.kernel.pagination import Page
from corral.services import search


class Search(Resource):
    """Full-text search in turns, outputs and notes."""

    noun = "search"

    count_unindexed = read(ops.count_unindexed, mode="one")

    @operation(reads=True, slow=True)
    def find(
        self,
        text: str,
        *,
        kind: str | None = None,
        project: str | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> Page[Hit]:
        """Find passages that contain all words of a text, newest first.

        `kind` and `project` restrict the search. New turns are indexed first, up to some thousands;
        `count_unindexed` returns how many remain.
        """
        return search.find(
            self._database, text, kind=kind, project=project, limit=limit, after=after
        )

    @operation(slow=True)
    def catch_up(self, *, batches: int = search.MAX_BATCHES) -> int:
        """Index new turns in short transactions; returns their number."""
        return search.index_turns(self._database, batches=batches)
