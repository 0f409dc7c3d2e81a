"""Progress of chat sessions: no letter blocks the letters behind it."""

import pytest

from corral.api import Corral
from corral.daemon.chat import ChatLoop
from corral.db.tx import Tx
from corral.domain.chat.model import Conversation
from corral.domain.runs.model import Run
from corral.kernel.clock import HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Refused
from corral.services.chat import turn_finish
from corral.services.runs import dispatch
from tests.support.fake_channels import Chat, Runner
from tests.support.invariants import check_store
from tests.support.prompt_parser import now_in

pytestmark = pytest.mark.usefixtures("fake_channels")

ROUNDS = 30
"""More than any session of these tests needs."""


@pytest.fixture
def chat(store: Corral) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    store.wirings.add("ada", channel=chat.channel.name)
    return chat


def answer_all(store: Corral, runner: Runner, clock: ManualClock) -> list[str]:
    """Run turns until the session is idle; return the prompts of the turns."""
    prompts = []
    for _ in range(ROUNDS):
        if store.internal.chat.start_turns():
            run = runner.begin()
            prompts.append(runner.prompt(run) or "")
            runner.end(run, f"answer {len(prompts)}")
            store.internal.chat.finish_turns()
        clock.advance(2 * MINUTE)
    return prompts


def lose_answer(chat: Chat, runner: Runner) -> str:
    """Run a turn whose answer the platform refuses; return its session, which now has a notice."""
    session = str(chat.says("hello").routes[0].session_id)
    chat.store.internal.chat.start_turns()
    runner.end(runner.begin(), "an answer")
    chat.store.internal.chat.finish_turns()
    chat.platform.outcomes = ["refuse"]
    chat.deliver()
    return session


def notify(store: Corral, session: str, number: int = 0) -> None:
    body = {
        "kind": "undelivered",
        "undelivered": f"let_{number}",
        "reason": f"the platform refused message {number}",
    }
    store.mail.put(f"session:{session}", body, key=f"undelivered:{number}")


def test_session_answers_after_a_failed_turn_that_carried_a_notice(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat
) -> None:
    session = lose_answer(chat, runner)
    assert store.internal.chat.start_turns() == [], "a notice wakes no agent"
    second_message = chat.says("second message")
    store.internal.chat.start_turns()
    runner.die(runner.begin())
    store.internal.chat.finish_turns()
    third_message = chat.says("third message")
    clock.advance(10 * MINUTE)
    prompts = answer_all(store, runner, clock)
    assert any("second message" in prompt for prompt in prompts)
    assert any("did not arrive" in prompt for prompt in prompts)
    for message in (second_message, third_message):
        assert store.mail.get(str(message.routes[0].letter_id)).state == "done"
    assert store.mail.list(mailbox=f"session:{session}").items == []
    check_store(store)


def test_batch_full_of_notices_does_not_hide_the_next_message(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat
) -> None:
    session = lose_answer(chat, runner)
    for number in range(130):
        notify(store, session, number)
    message = chat.says("hello again")
    answer_all(store, runner, clock)
    assert store.mail.get(str(message.routes[0].letter_id)).state == "done"
    assert store.mail.list(mailbox=f"session:{session}").items == []


@pytest.mark.parametrize("priority", [-5, 5])
def test_notice_with_another_priority_does_not_block_a_letter(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat, priority: int
) -> None:
    session = lose_answer(chat, runner)
    letter = store.mail.put(f"session:{session}", "do it", priority=priority)
    answer_all(store, runner, clock)
    assert store.mail.get(letter.id).state == "done"


def test_future_letter_with_high_priority_does_not_block_a_message(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat
) -> None:
    session = lose_answer(chat, runner)
    due_at = store.now() + 20 * HOUR
    store.mail.put(f"session:{session}", "later", priority=50, due_at=due_at)
    message = chat.says("hello again")
    assert len(store.internal.chat.start_turns()) == 1
    runner.end(runner.begin(), "yes")
    store.internal.chat.finish_turns()
    assert store.mail.get(str(message.routes[0].letter_id)).state == "done"
    assert store.internal.chat.next_due() == due_at


def test_next_due_considers_all_letters_of_a_session(store: Corral, chat: Chat) -> None:
    mailbox = f"session:{chat.says('hello').routes[0].session_id}"
    for letter in store.mail.claim(mailbox, owner="test"):
        store.mail.ack(letter)
    for n in range(20):
        store.mail.put(mailbox, n, priority=50, due_at=store.now() + 20 * HOUR)
    soon = store.now() + 1_000
    store.mail.put(mailbox, "soon", due_at=soon)
    assert store.internal.chat.next_due() == soon


def test_notice_is_dead_before_message_attempts_are_exhausted(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat
) -> None:
    """A notice that makes every turn fail must not end the message of the same batch."""
    session = lose_answer(chat, runner)
    message = chat.says("hello again")
    for _ in range(ROUNDS):
        if store.internal.chat.start_turns():
            run = runner.begin()
            poisoned = "did not arrive" in now_in(runner.prompt(run))
            runner.die(run) if poisoned else runner.end(run, "yes")
            store.internal.chat.finish_turns()
        clock.advance(10 * MINUTE)
    assert store.mail.get(str(message.routes[0].letter_id)).state == "done"
    (dead_notice,) = [
        letter for letter in store.mail.dead().items if letter.mailbox == f"session:{session}"
    ]
    assert "undelivered" in dead_notice.body


def test_letter_dropped_during_its_turn_does_not_stop_the_session(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat
) -> None:
    store.agents.create("ben", provider="scripted")
    store.wirings.add("ben", channel=chat.channel.name)
    first_message = chat.says("hello")
    store.internal.chat.start_turns()
    runs = [runner.begin(), runner.begin()]
    for route in first_message.routes:
        store.mail.drop(str(route.letter_id))
    for run in runs:
        runner.end(run, "done")
    assert len(store.internal.chat.finish_turns()) == 2
    second_message = chat.says("second message")
    assert len(store.internal.chat.start_turns()) == 2
    for end_run in (runner.die, runner.end):
        run = runner.begin()
        for route in second_message.routes:
            if route.session_id == run.session_id:
                store.mail.drop(str(route.letter_id))
        end_run(run)
    assert len(store.internal.chat.finish_turns()) == 2
    chat.says("third message")
    clock.advance(SECOND)
    assert len(store.internal.chat.start_turns()) == 2


def test_letters_of_a_replaced_closed_session_are_refused(
    store: Corral, runner: Runner, chat: Chat
) -> None:
    first_message = chat.says("hello")
    session = str(first_message.routes[0].session_id)
    future_letter = store.mail.put(f"session:{session}", "later", due_at=store.now() + HOUR)
    store.sessions.close(session)
    second_message = chat.says("hello again")
    assert second_message.routes[0].session_id != session
    for letter in (str(first_message.routes[0].letter_id), future_letter.id):
        assert store.mail.get(letter).state == "refused"
    chat.deliver()
    assert "could not be answered" in chat.platform.words()[0]


def test_turn_that_cannot_be_ended_does_not_block_others(
    store: Corral, runner: Runner, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.agents.create("ben", provider="scripted")
    store.wirings.add("ben", channel=chat.channel.name)
    chat.says("hello")
    store.internal.chat.start_turns()
    runs = [runner.begin(), runner.begin()]
    for run in runs:
        runner.end(run, "done")
    finish_turn = turn_finish.finish_turn

    def refuse_first(
        tx: Tx, conversation: Conversation, run: Run | None, text: str | None
    ) -> Conversation | None:
        if conversation.run_id == min(candidate.id for candidate in runs):
            raise Refused("no")
        return finish_turn(tx, conversation, run, text)

    monkeypatch.setattr(turn_finish, "finish_turn", refuse_first)
    assert len(store.internal.chat.finish_turns()) == 1


def test_daemon_starts_turns_in_a_store_without_channels(
    store: Corral, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "start_queued", lambda database: [])
    store.agents.create("ada", provider="scripted")
    store.schedules.prompt("ada", "report", every_ms=MINUTE)
    clock.advance(2 * MINUTE)
    store.schedules.fire_due()
    assert ChatLoop().run_once(store) == 1
    assert len(store.runs.list(state="queued").items) == 1


def test_malformed_letter_signed_by_a_place_stops_no_session(
    store: Corral, runner: Runner, clock: ManualClock, chat: Chat
) -> None:
    session = lose_answer(chat, runner)
    place = chat.place()
    for number, body in enumerate(
        (
            {"kind": "chat", "message": "msg_1", "place": place, "text": 5},
            {"text": "do it", "place": place, "thread": 5},
        )
    ):
        key = ("msg_1", "sch_1:1")[number]
        store.mail.put(f"session:{session}", body, key=key, sender=f"place:{place}")
    message = chat.says("hello again")
    answer_all(store, runner, clock)
    assert store.mail.get(str(message.routes[0].letter_id)).state == "done"
