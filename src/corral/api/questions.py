"""Operations of `store.questions`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.domain.questions import ops
from corral.domain.questions.model import Question
from corral.services.wait import wait_until_ended


class Questions(Resource):
    """Questions to people or agents, with options, a deadline and a fallback answer."""

    noun = "question"
    subjects = ("question",)

    ask = write(
        ops.ask,
        repeatable_by="key",
        actor=("asker",),
        in_run="as_own_run",
        agent=rules.as_asker,
        objects={"run": "runs"},
    )
    answer = write(
        ops.answer,
        durable=True,
        repeatable=True,
        actor=("by",),
        decision=True,
        agent=rules.as_answerer,
    )
    withdraw = write(ops.withdraw, actor=("by",), agent=rules.as_answerer)
    acknowledge = write(ops.acknowledge, repeatable=True, agent=rules.only_asked_question)
    next_due = read(ops.next_due, mode="one")
    get = read(ops.get, expire=ops.expire_due, agent=rules.only_own_question)
    list = read(ops.list_questions, mode="one", expire=ops.expire_due, agent=rules.as_asker)

    @operation(reads=True, waits="timeout_ms", agent=rules.only_own_question)
    def wait(self, question: str, *, timeout_ms: int | None = None) -> Question:
        """Wait until a question is answered, expired or withdrawn.

        Raises NotYet after `timeout_ms`. Call `acknowledge` afterwards; otherwise the asker also
        gets the answer as a letter.
        """
        id = self.get(question).id
        return wait_until_ended(self._database, lambda: self.get(id), timeout_ms)
