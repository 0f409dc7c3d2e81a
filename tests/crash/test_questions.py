"""Crashes of question operations: answers and outcome letters happen once."""

from pathlib import Path

from corral.api import Corral
from corral.domain.questions.model import Question
from corral.kernel.clock import HOUR
from corral.kernel.errors import Conflict
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit


def list_questions(store: Corral) -> list[Question]:
    return store.questions.list(all=True).items


def ask(store: Corral, world: World) -> None:
    store.questions.ask(
        "Deploy?",
        options=["yes", "no"],
        fallback="no",
        asker="agent:ada",
        answerers=["agent:lead", "user:ann"],
        deadline_ms=2 * HOUR,
    )


def answer_and_record(store: Corral, world: World) -> None:
    (question,) = list_questions(store)
    world.record(str(store.questions.answer(question.id, "yes", by="user:ann").answer))
    store.questions.acknowledge(question.id)


def test_question_and_letters_to_answerers_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ask_twice(store: Corral, world: World) -> None:
        for n in range(2):
            question = store.questions.ask(
                "Which?", asker="agent:ada", answerers=["agent:lead"], key=f"k{n}"
            )
            world.record(question.id)

    def check(store: Corral, world: World) -> None:
        ids = {question.id for question in list_questions(store)}
        assert ids >= {*world.records}
        assert len(ids) == 2
        letters = store.mail.list(mailbox="agent:lead", all=True).items
        assert sorted(letter.body["question"] for letter in letters) == sorted(ids)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(run=ask_twice, recover=ask_twice, check=check)
    )


def test_answer_is_stored_and_sent_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def answer_differently(store: Corral, world: World) -> None:
        (question,) = list_questions(store)
        try:
            store.questions.answer(question.id, "no", by="agent:lead")
        except Conflict:  # the first answer counts
            store.questions.answer(question.id, "yes", by="user:ann")  # the same answer again

    def check(store: Corral, world: World) -> None:
        (question,) = list_questions(store)
        assert question.state == "answered"
        assert world.records in ([], [question.answer])
        letters = store.mail.list(mailbox="agent:ada", all=True).items
        assert [letter.body["answer"] for letter in letters] == [question.answer]
        assert store.mail.list(mailbox="agent:lead").items == []

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            prepare=ask,
            run=answer_and_record,
            recover=answer_differently,
            check=check,
        ),
    )


def test_expired_question_applies_fallback_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def sweep(store: Corral, world: World) -> None:
        world.clock.advance(2 * HOUR)
        while store.internal.questions.expire_due():
            pass

    def check(store: Corral, world: World) -> None:
        (question,) = list_questions(store)
        assert (question.state, question.answer) == ("expired", "no")
        letters = store.mail.list(mailbox="agent:ada", all=True).items
        assert [letter.body["state"] for letter in letters] == ["expired"]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=ask, run=sweep, recover=sweep, check=check)
    )
