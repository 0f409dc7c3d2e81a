"""Questions: options, votes, deadlines, fallbacks, and letters with the outcome."""

from contextlib import suppress
from functools import partial

import corral
from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.kernel.clock import DAY, HOUR, MINUTE, ManualClock
from corral.kernel.errors import Conflict, IllegalMove, Invalid, NotFound, NotYet, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, unchanged, walk
from tests.support.threads import Racer, race

ANN = "user:ann"


def list_letters(store: Corral, mailbox: str) -> list[Letter]:
    return store.mail.list(mailbox=mailbox, limit=100).items


def test_answer_is_sent_to_asker_as_one_letter(store: Corral) -> None:
    question = store.questions.ask("Merge it?", options=["yes", "no"], asker="agent:ada")
    assert (question.state, question.options, question.free_text) == ("open", ["yes", "no"], False)
    answered = store.questions.answer(question.id, "yes", by=ANN)
    assert (answered.state, answered.answer, answered.answered_by) == ("answered", "yes", ANN)
    (letter,) = list_letters(store, "agent:ada")
    assert (letter.body["question"], letter.body["answer"]) == (question.id, "yes")
    assert list_events(store, question.id) == ["question.ask", "question.answer"]


def test_second_answer_conflicts_and_names_the_first_answerer(
    store: Corral,
) -> None:
    question = store.questions.ask("Merge it?", asker="agent:ada")
    store.questions.answer(question.id, "yes", by=ANN)
    with raises_without_change(store, Conflict) as caught:
        store.questions.answer(question.id, "no", by="user:ben")
    assert "user:ann answered it: yes" in caught.value.message


def test_repeated_answer_of_the_same_person_is_idempotent(store: Corral) -> None:
    question = store.questions.ask("Merge it?", asker="agent:ada")
    answered = store.questions.answer(question.id, "yes", by=ANN)
    assert store.questions.answer(question.id, "yes", by=ANN) == answered
    assert len(list_letters(store, "agent:ada")) == 1


def test_option_is_chosen_by_text_or_number_only(store: Corral) -> None:
    question = store.questions.ask("Which?", options=["red", "green"], asker="agent:ada")
    for answer in ("blue", "3", "0", "-1", ""):
        with raises_without_change(store, Invalid):
            store.questions.answer(question.id, answer, by=ANN)
    assert store.questions.answer(question.id, "2", by=ANN).answer == "green"


def test_free_text_question_accepts_any_answer(store: Corral) -> None:
    question = store.questions.ask("Which?", options=["red"], free_text=True, asker="agent:ada")
    assert store.questions.answer(question.id, "blue", by=ANN).answer == "blue"


def test_agent_answers_only_if_named_and_never_its_own_question(store: Corral) -> None:
    open_question = store.questions.ask("Which?", asker="agent:ada")
    addressed = store.questions.ask("Which?", asker="agent:ada", answerers=["agent:lead"])
    own_question = store.questions.ask("Which?", asker="agent:ada", answerers=["agent:ada"])
    for question, by in (
        (open_question, "agent:lead"),
        (open_question, "agent:ada"),
        (addressed, ANN),
        (own_question, "agent:ada"),
        (open_question, "session:ses_1"),
    ):
        with raises_without_change(store, Refused):
            store.questions.answer(question.id, "x", by=by)
    assert store.questions.answer(addressed.id, "x", by="agent:lead").state == "answered"


def test_answerer_letter_is_closed_when_question_ends(
    store: Corral,
) -> None:
    question = store.questions.ask("Which?", asker="agent:ada", answerers=["agent:lead", ANN])
    assert [letter.body["text"] for letter in list_letters(store, "agent:lead")] == ["Which?"]
    store.questions.answer(question.id, "this", by=ANN)
    assert list_letters(store, "agent:lead") == list_letters(store, ANN) == []


def test_overdue_question_rejects_answers_before_the_sweep(
    store: Corral, clock: ManualClock
) -> None:
    question = store.questions.ask(
        "Deploy?", options=["yes", "no"], fallback="no", asker="agent:ada", deadline_ms=HOUR
    )
    clock.advance(HOUR - 1)
    assert store.questions.get(question.id).state == "open"
    clock.advance(1)
    with raises_without_change(store, Conflict) as caught:
        store.questions.answer(question.id, "yes", by=ANN)
    assert "the fallback applies: no" in caught.value.message
    assert store.questions.list().items == []
    ended = store.questions.get(question.id)
    assert (ended.state, ended.answer, ended.answered_by) == ("expired", "no", None)
    (letter,) = list_letters(store, "agent:ada")
    assert (letter.body["state"], letter.body["answer"]) == ("expired", "no")
    assert store.internal.questions.expire_due() == []


def test_deadline_survives_a_restart(url: str, clock: ManualClock) -> None:
    with corral.open(url, clock=clock) as store:
        question = store.questions.ask("Deploy?", asker="agent:ada", deadline_ms=HOUR)
    clock.advance(30 * MINUTE)
    with corral.open(url, clock=clock) as store:
        assert store.questions.get(question.id).deadline_at == question.created_at + HOUR
        assert store.questions.next_due() == question.created_at + HOUR
        clock.advance(30 * MINUTE)
        assert [expired.id for expired in store.internal.questions.expire_due()] == [question.id]


def test_answer_after_asker_crashed_waits_in_its_mailbox(store: Corral) -> None:
    question = store.questions.ask("Which?", asker="agent:ada", run="run_ended")
    store.questions.answer(question.id, "this", by=ANN)
    (letter,) = store.mail.claim("agent:ada", owner="run_next")
    assert letter.body["answer"] == "this"


def test_acknowledged_outcome_closes_the_letter(store: Corral) -> None:
    question = store.questions.ask("Which?", asker="agent:ada")
    waiter = Racer(lambda: store.questions.wait(question.id, timeout_ms=20_000))
    store.questions.answer(question.id, "this", by=ANN)
    assert waiter.result().answer == "this"
    assert len(list_letters(store, "agent:ada")) == 1
    for _ in range(2):
        store.questions.acknowledge(question.id)
    assert list_letters(store, "agent:ada") == []


def test_acknowledge_leaves_a_claimed_letter(store: Corral) -> None:
    question = store.questions.ask("Which?", asker="agent:ada")
    store.questions.answer(question.id, "this", by=ANN)
    (letter,) = store.mail.claim("agent:ada", owner="run_1")
    store.questions.acknowledge(question.id)
    assert store.mail.ack(letter).state == "done"


def test_wait_times_out(store: Corral) -> None:
    question = store.questions.ask("Which?", asker="agent:ada")
    with raises_without_change(store, NotYet) as caught:
        store.questions.wait(question.id, timeout_ms=1)
    assert caught.value.details["state"] == "open"


def test_ask_is_idempotent_by_asker_and_key(store: Corral) -> None:
    question = store.questions.ask("Which?", asker="agent:ada", key="k")
    assert store.questions.ask("Another?", asker="agent:ada", key="k") == question
    assert store.questions.ask("Another?", asker="agent:ben", key="k").id != question.id


def test_only_asker_or_a_person_can_withdraw_a_question(store: Corral) -> None:
    question = store.questions.ask("Which?", asker="agent:ada")
    with raises_without_change(store, Refused):
        store.questions.withdraw(question.id, by="agent:ben")
    assert store.questions.withdraw(question.id, by="agent:ada").state == "withdrawn"
    assert list_letters(store, "agent:ada") == []
    withdrawn = store.questions.ask("Which?", asker="agent:ada")
    store.questions.withdraw(withdrawn.id, by=ANN, reason="not needed")
    assert [letter.body["state"] for letter in list_letters(store, "agent:ada")] == ["withdrawn"]
    with raises_without_change(store, IllegalMove):
        store.questions.withdraw(withdrawn.id, by=ANN)
    with raises_without_change(store, Conflict) as caught:
        store.questions.answer(withdrawn.id, "x", by=ANN)
    assert caught.value.details["state"] == "withdrawn"


def test_open_questions_per_asker_are_limited(store: Corral) -> None:
    store.settings.set("questions.max_open", 2, scope="agent:ada")
    for _ in range(2):
        store.questions.ask("Which?", asker="agent:ada")
    with raises_without_change(store, Refused):
        store.questions.ask("Which?", asker="agent:ada")
    store.questions.ask("Which?", asker="agent:ben")


@each_case(
    "fields",
    [
        {"text": ""},
        {"text": "a\0b"},
        {"text": "x" * 100_000},
        {"options": ["a", "a"]},
        {"options": ["a"] * 21},
        {"options": [""]},
        {"options": "yes"},
        {"fallback": "c", "options": ["a"]},
        {"answerers": ["queue:x"]},
        {"answerers": ["ann"]},
        {"answerers": [f"user:u{n}" for n in range(21)]},
        {"deadline_ms": 5},
        {"deadline_ms": 400 * DAY},
        {"asker": "unknown"},
    ],
)
def test_invalid_questions_are_rejected(store: Corral, fields: dict[str, object]) -> None:
    arguments: dict[str, object] = {"text": "Which?", "asker": "agent:ada"} | fields
    with raises_without_change(store, Invalid):
        store.questions.ask(**arguments)


def test_unknown_question_is_not_found(store: Corral) -> None:
    for verb in (store.questions.get, store.questions.acknowledge, store.questions.wait):
        with raises_without_change(store, NotFound):
            verb("qst_1")


def test_questions_are_listed_newest_first_in_pages(store: Corral) -> None:
    ids = [store.questions.ask(f"{n}?", asker=f"agent:a{n % 2}").id for n in range(5)]
    store.questions.answer(ids[4], "x", by=ANN)
    assert [question.id for question in walk(store.questions.list)] == ids[3::-1]
    assert [question.id for question in walk(store.questions.list, all=True)] == ids[::-1]
    assert [question.id for question in walk(store.questions.list, asker="agent:a0")] == [
        ids[2],
        ids[0],
    ]
    all_questions = walk(store.questions.list, asker="agent:a0", all=True)
    assert [question.id for question in all_questions] == [ids[4], ids[2], ids[0]]


def test_retention_deletes_old_questions_but_not_open_ones(
    store: Corral, clock: ManualClock
) -> None:
    answered = store.questions.ask("Which?", asker="agent:ada")
    store.questions.answer(answered.id, "this", by=ANN)
    open_question = store.questions.ask("Which?", asker="agent:ada", deadline_ms=365 * DAY)
    clock.advance(91 * DAY)
    counted_rows = {result.table: result.rows for result in store.db.prune(dry_run=True)}[
        "questions"
    ]
    pruned_rows = {result.table: result.rows for result in store.db.prune()}["questions"]
    assert counted_rows == pruned_rows == 1
    assert store.questions.get(open_question.id).state == "open"


def test_deleting_a_project_withdraws_its_questions(store: Corral, tmp_path: object) -> None:
    project = store.projects.register(str(tmp_path)).id
    question = store.questions.ask("Which?", asker="agent:ada", project=project)
    store.projects.delete(project)
    assert store.questions.get(question.id).state == "withdrawn"


# -- required votes -------------------------------------------------------------------------------

OWNERS = ["user:ann", "user:ben", "user:cleo"]


def test_second_equal_vote_decides_when_two_are_required(
    store: Corral,
) -> None:
    question = store.questions.ask(
        "Drop it?", options=["yes", "no"], asker="agent:ada", answerers=OWNERS, required_votes=2
    )
    after_first_vote = store.questions.answer(question.id, "yes", by="user:ann")
    assert (after_first_vote.state, after_first_vote.answer) == ("open", None)
    assert list_letters(store, "agent:ada") == [], "one of two votes is not an answer"
    assert store.questions.answer(question.id, "yes", by="user:ann") == after_first_vote, (
        "a repeated vote does not count twice"
    )
    with raises_without_change(store, Conflict) as caught:
        store.questions.answer(question.id, "no", by="user:ann")
    assert "An answer cannot be changed" in caught.value.message
    with raises_without_change(store, Refused):
        store.questions.answer(question.id, "yes", by="user:mallory")
    store.questions.answer(question.id, "no", by="user:ben")
    ended = store.questions.answer(question.id, "yes", by="user:cleo")
    assert (ended.state, ended.answer) == ("answered", "yes")
    assert ended.answered_by == "user:ann, user:cleo"
    assert [vote.answer for vote in ended.votes] == ["yes", "no", "yes"]
    with unchanged(store):
        for voter, answer in (("ann", "yes"), ("ben", "no"), ("cleo", "yes")):
            assert store.questions.answer(question.id, answer, by=f"user:{voter}") == ended
    with raises_without_change(store, Conflict):
        store.questions.answer(question.id, "no", by="user:cleo")
    assert len(list_letters(store, "agent:ada")) == 1
    votes = ["question.vote"] * 2
    assert list_events(store, question.id) == ["question.ask", *votes, "question.answer"]


def test_fallback_applies_at_once_when_agreement_is_impossible(store: Corral) -> None:
    question = store.questions.ask(
        "Drop it?",
        options=["yes", "no"],
        asker="agent:ada",
        answerers=OWNERS[:2],
        required_votes=2,
        fallback="no",
    )
    store.questions.answer(question.id, "yes", by="user:ann")
    ended = store.questions.answer(question.id, "no", by="user:ben")
    assert (ended.state, ended.answer) == ("expired", "no")
    (letter,) = list_letters(store, "agent:ada")
    assert letter.body["state"] == "expired"
    with raises_without_change(store, Conflict) as caught:
        store.questions.answer(question.id, "yes", by="user:ben")
    assert caught.value.details["reason"] == "too_late"


def test_too_few_votes_at_the_deadline_expire_the_question(
    store: Corral, clock: ManualClock
) -> None:
    question = store.questions.ask(
        "Drop it?", options=["yes", "no"], asker="agent:ada", required_votes=2, deadline_ms=HOUR
    )
    store.questions.answer(question.id, "yes", by=ANN)
    clock.advance(HOUR)
    assert store.questions.get(question.id).state == "expired"


@each_case("required_votes", [0, -1, 4, 21])
def test_required_votes_are_limited_by_answerers(store: Corral, required_votes: int) -> None:
    with raises_without_change(store, Invalid):
        store.questions.ask("?", asker="agent:ada", answerers=OWNERS, required_votes=required_votes)


def test_concurrent_votes_have_exactly_one_outcome(store: Corral) -> None:
    board = [f"user:u{n}" for n in range(8)]
    question = store.questions.ask(
        "Drop it?", options=["yes", "no"], asker="agent:ada", answerers=board, required_votes=3
    )

    def vote(n: int) -> None:
        with suppress(Conflict):
            store.questions.answer(question.id, "yes" if n % 2 else "no", by=board[n])

    race([partial(vote, n) for n in range(8)])
    ended = store.questions.get(question.id)
    assert ended.state == "answered"
    assert [vote.answer for vote in ended.votes].count(str(ended.answer)) == 3
    assert len(list_letters(store, "agent:ada")) == 1
