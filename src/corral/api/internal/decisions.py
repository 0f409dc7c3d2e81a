"""Operations of `store.internal.decisions`."""

from corral.api.operation import Resource, write
from corral.domain.decisions import ops


class InternalDecisions(Resource):
    """Expiry of proposed decisions, for the janitor."""

    noun = "decision"

    expire_due = write(ops.expire_due, repeatable=True)
