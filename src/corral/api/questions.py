"""Operations of `store.questions`."""

from corral.api.operation import Resource, read, write
from corral.api.wait import wait_until_ended
from corral.domain.questions import ops
from corral.domain.questions.model import Question


class Questions(Resource):
    """Questions to people or agents, with options, a deadline and a fallback answer."""

    noun = "question"

    ask = write(ops.ask, repeatable_by="key")
    answer = write(ops.answer, durable=True, repeatable=True)
    withdraw = write(ops.withdraw)
    acknowledge = write(ops.acknowledge, repeatable=True)
    expire_due = write(ops.expire_due, repeatable=True)
    next_due = read(ops.next_due, mode="one")
    get = read(ops.get, timely=True)
    list = read(ops.list_questions, mode="one", timely=True)

    def wait(self, question: str, *, timeout_ms: int | None = None) -> Question:
        """Wait until a question is answered, expired or withdrawn; raises Refused on timeout.

        Call `acknowledge` afterwards; otherwise the asker also gets the answer as a letter.
        """
        id = self.get(question).id
        return wait_until_ended(self._database, lambda: self.get(id), timeout_ms)
