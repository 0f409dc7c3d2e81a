"""Operations of `store.internal.questions`."""

from corral.api.operation import Resource, write
from corral.domain.questions import ops


class InternalQuestions(Resource):
    """Expiry of open questions, for the janitor."""

    noun = "question"

    expire_due = write(ops.expire_due, repeatable=True)
