"""Operations of `store.internal.search`."""

from corral.api.operation import Resource, write
from corral.domain.search import ops


class InternalSearch(Resource):
    """The index of full-text search."""

    noun = "search"

    index_turns = write(ops.index_turns)
