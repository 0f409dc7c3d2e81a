"""Concurrent answers: the first counts, and the others conflict."""

import os
from collections import Counter

import corral
from corral.kernel.errors import Conflict, Refused
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.threads import race

QUESTIONS = 8


def test_first_of_concurrent_answers_counts_and_others_conflict(url: str) -> None:
    with corral.open(url) as store:
        ids = [store.questions.ask("Which?", asker="agent:ada").id for _ in range(QUESTIONS)]

    def answer_all() -> list[tuple[str, bool, str]]:
        me = str(os.getpid())
        outcomes = []
        with corral.open(url) as store:
            for id in ids:
                try:
                    answer = store.questions.answer(id, me, by=f"user:{me}").answer
                    outcomes.append((id, True, str(answer)))
                except Conflict as late:
                    outcomes.append((id, False, late.details["answer"]))
        return outcomes

    outcomes = [item for process in run_concurrently([answer_all] * 4) for item in process]
    first_answers = Counter(id for id, first, _ in outcomes if first)
    assert first_answers == Counter(ids)
    with corral.open(url) as store:
        answers = {id: store.questions.get(id).answer for id in ids}
        assert all(answers[id] == answer for id, _, answer in outcomes)
        assert len(store.mail.list(mailbox="agent:ada", limit=100).items) == QUESTIONS
        check_store(store)


def test_concurrent_asks_respect_the_limit(url: str) -> None:
    with corral.open(url) as store:
        store.settings.set("questions.max_open", 5)

        def ask() -> int:
            try:
                store.questions.ask("Which?", asker="agent:ada")
            except Refused:
                return 0
            return 1

        assert sum(racer.result() for racer in race([ask] * 12)) == 5
