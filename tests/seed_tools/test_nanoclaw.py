"""The ten behaviours of chat channels that users of NanoClaw rely on, with a faulty platform.

NanoClaw used two message files per session and a container. Corral uses letters and a run. Both
directions share one sequence of message numbers.
"""

import threading
from itertools import pairwise

import pytest

import corral
from corral.adapters.channels.contract import MessageKind
from corral.api import Corral
from corral.domain.chat.model import Message
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held, Refused
from tests.support.fake_channels import Chat, Runner
from tests.support.invariants import check_store
from tests.support.prompt_parser import texts_in
from tests.support.store import list_events

pytestmark = pytest.mark.usefixtures("fake_channels")


def start_chat(store: Corral, kind: str = "fake", **wiring: str) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, kind)
    store.wirings.add("ada", channel=chat.channel.name, **wiring)
    return chat


def list_woken_sessions(message: Message) -> list[str]:
    return [str(route.session_id) for route in message.routes if route.wakes]


# -- 1 --------------------------------------------------------------------------------------------


def test_1_session_mode_follows_the_wiring(store: Corral) -> None:
    for name in ("ada", "ben", "tom"):
        store.agents.create(name, provider="scripted")
    chat = Chat(store)
    chat.says("hello", place="one")
    chat.says("hello", place="two")
    store.wirings.add("ada", place=chat.place("one"), priority=10, mode="agent")
    store.wirings.add("ben", place=chat.place("one"), priority=0, mode="shared")
    store.wirings.add("tom", place=chat.place("one"), priority=-1, mode="thread")
    store.wirings.add("ada", place=chat.place("two"), mode="agent")
    first = list_woken_sessions(chat.says("x", place="one", thread="t1"))
    second = list_woken_sessions(chat.says("x", place="one", thread="t2"))
    third = list_woken_sessions(chat.says("x", place="two"))
    (ada, ben, tom), (ada_second, ben_second, tom_second) = first, second
    assert ada == ada_second == third[0], "one session per agent"
    assert ben == ben_second, "one session per chat"
    assert tom != tom_second, "one session per thread"
    assert len({ada, ben, tom, tom_second}) == 4, "agents do not share a session"
    owners = {store.sessions.get(id).agent_id for id in (ada, ben, tom)}
    assert len(owners) == 3


# -- 2 --------------------------------------------------------------------------------------------


def test_2_message_numbers_are_unique_and_in_commit_order(url: str) -> None:
    with corral.open(url) as store:
        chat = start_chat(store)
        chat.says("first")
        place = chat.place()
    count = 40

    def receive_messages(writer: int) -> None:
        with corral.open(url) as own_store:
            for n in range(count):
                own_chat = chat.__class__.__new__(chat.__class__)
                own_chat.__dict__ |= chat.__dict__ | {"store": own_store}
                own_chat.says(f"{writer}:{n}", event=f"{writer}:{n}")

    def send_messages(writer: int) -> None:
        with corral.open(url) as own_store:
            for n in range(count):
                own_store.messages.send_as_system(place, f"{writer}:{n}")

    threads = [
        threading.Thread(target=work, args=(n,))
        for n in (1, 2)
        for work in (receive_messages, send_messages)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with corral.open(url) as store:
        messages = store.messages.list(place=place, limit=1_000).items[::-1]
        numbered = [message for message in messages if ":" in message.text]
        assert len({message.id for message in numbered}) == len(numbered) == 4 * count
        for direction in ("in", "out"):
            for writer in (1, 2):
                sent_numbers = [
                    int(message.text.split(":")[1])
                    for message in numbered
                    if message.direction == direction and message.text.startswith(f"{writer}:")
                ]
                assert sent_numbers == list(range(count)), "the order of each writer is kept"
        letters = [message.letter_id for message in numbered if message.direction == "out"]
        numbers = [int(str(letter).removeprefix("let_")) for letter in letters]
        assert len({*numbers}) == 2 * count
        check_store(store)


# -- 3 --------------------------------------------------------------------------------------------


def test_3_message_of_a_dead_run_is_retried_in_the_same_session(
    store: Corral, clock: ManualClock
) -> None:
    chat = start_chat(store)
    runner = Runner(store)
    message = chat.says("build it", direct=True)
    (letter_id,) = [route.letter_id for route in message.routes]
    (session,) = list_woken_sessions(message)
    (first,) = store.internal.chat.start_turns()
    run = runner.begin()
    assert runner.prompt(run) == "build it"
    store.sessions.set_provider_session(session, "scripted", "its-own-id")
    fence = store.mail.get(str(letter_id)).fence
    assert store.internal.chat.start_turns() == [], "one turn at a time"
    runner.die(run)
    store.internal.chat.finish_turns()
    waiting = store.mail.get(str(letter_id))
    assert (waiting.state, waiting.attempts) == ("waiting", 1)
    with pytest.raises(Held):
        store.mail.ack(waiting.id, fence=fence)
    assert store.internal.chat.start_turns() == [], "not before the back-off"
    clock.advance(6 * SECOND)
    (retry,) = store.internal.chat.start_turns()
    assert retry.id != first.id
    run = runner.begin()
    assert runner.prompt(run) == "build it"
    assert store.runs.get_launch(run.id).resume_session == "its-own-id"
    runner.end(run, "done")
    store.internal.chat.finish_turns()
    assert store.mail.get(str(letter_id)).state == "done"
    chat.deliver()
    assert chat.platform.words() == ["done"]
    check_store(store)


# -- 4 --------------------------------------------------------------------------------------------


def test_4_poison_message_dies_after_six_attempts_with_notices(
    store: Corral, clock: ManualClock
) -> None:
    chat = start_chat(store)
    runner = Runner(store)
    store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    poison = chat.says("poison")
    after = chat.says("harmless", thread="other")
    attempt_times: list[int] = []
    for _ in range(60):
        if store.internal.chat.start_turns():
            run = runner.begin()
            if "harmless" in (runner.prompt(run) or ""):
                runner.end(run, "fine")
                store.internal.chat.finish_turns()
                break
            attempt_times.append(clock.now())
            runner.die(run)
            store.internal.chat.finish_turns()
        clock.advance(SECOND * 5)
    pauses = [later - earlier for earlier, later in pairwise(attempt_times)]
    assert len(attempt_times) == 6
    for pause, seconds in zip(pauses, (5, 10, 20, 40, 80), strict=True):
        assert seconds * SECOND <= pause <= seconds * 1.1 * SECOND + 5 * SECOND
    dead = store.mail.get(str(poison.routes[0].letter_id))
    assert (dead.state, dead.attempts) == ("dead", 6)
    assert store.mail.get(str(after.routes[0].letter_id)).state == "done", (
        "later messages are processed"
    )
    alerts = store.mail.list(mailbox="user:operator").items
    assert [alert.body["subject"] for alert in alerts] == [dead.id], "one alert"
    chat.deliver()
    notice, answer = chat.platform.words()
    assert "could not be answered" in notice
    assert answer == "fine"
    check_store(store)


# -- 5 --------------------------------------------------------------------------------------------


def test_5_messages_stay_ordered_when_a_channel_fails_twice(url: str, clock: ManualClock) -> None:
    with corral.open(url, clock=clock) as store:
        chat = start_chat(store)
        chat.says("first")
        chat.platform.outcomes = ["fail", "fail"]
        for text in ("m1", "m2"):
            store.messages.send(text, agent="ada", to="room")
        assert chat.deliver("one") == ["waiting"]
    clock.advance(MINUTE)
    with corral.open(url, clock=clock) as store:  # after a restart of the host
        chat.store = store
        assert chat.deliver("two") == ["waiting"]
        (first, _) = store.mail.list(mailbox=f"place:{chat.place()}").items
        assert first.attempts == 2
        clock.advance(MINUTE)
        assert chat.deliver("two") == ["done", "done"]
        assert chat.platform.words() == ["m1", "m2"]
        sent = [message for message in store.messages.list().items if message.direction == "out"]
        assert [message.platform_ids for message in sent] == [["m2"], ["m1"]]


def test_5_failing_channel_is_reported_to_the_agent(store: Corral, clock: ManualClock) -> None:
    chat = start_chat(store)
    runner = Runner(store)
    (session,) = list_woken_sessions(chat.says("hello", direct=True))
    store.internal.chat.start_turns()
    run = runner.begin()
    chat.platform.outcomes = ["fail"] * 6
    runner.end(run, "my answer")
    store.internal.chat.finish_turns()
    for _ in range(6):
        chat.deliver()
        clock.advance(5 * MINUTE)
    (message,) = [item for item in store.messages.list().items if item.direction == "out"]
    assert (message.state, message.platform_ids) == ("undelivered", [])
    assert chat.platform.words() == []
    (notice,) = store.mail.list(mailbox=f"session:{session}").items
    assert notice.body["state"] == "dead"
    assert store.internal.chat.start_turns() == [], "a notice wakes no agent, so it cannot loop"
    chat.says("still there?", direct=True)
    store.internal.chat.start_turns()
    prompt = runner.prompt(runner.begin()) or ""
    assert "did not arrive" in prompt
    assert "still there?" in prompt


# -- 6 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fake", "forgetful"])
def test_6_crash_between_send_and_record_shows_one_copy(
    store: Corral, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from corral.services.chat.delivery import Delivery

    chat = start_chat(store, kind)
    chat.says("first")
    (sent,) = store.messages.send("hello", agent="ada", to="room")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Delivery, "_record_outcome", crash)
        with pytest.raises(KeyboardInterrupt):
            chat.deliver("one")
    assert chat.platform.words() == ["hello"]
    assert store.messages.get(sent.id).state == "queued", "not marked as sent"
    assert sent.letter_id is not None
    expected = "waiting" if kind == "fake" else "unconfirmed"
    assert store.mail.get(sent.letter_id).state == expected
    clock.advance(2 * MINUTE)
    chat.deliver("two")
    assert chat.platform.words() == ["hello"]
    assert store.messages.get(sent.id).state == "sent"
    assert store.mail.get(sent.letter_id).state == "done"


# -- 7 --------------------------------------------------------------------------------------------


def test_7_forged_letter_without_a_destination_is_not_sent(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    chat.says("hello")
    with pytest.raises(Refused):
        store.messages.send("let me", agent="ada", to=chat.place())
    forged = store.mail.put(f"place:{chat.place()}", {"text": "forged"}, sender="agent:ada")
    assert chat.deliver() == ["refused"]
    assert chat.platform.words() == []
    letter = store.mail.get(forged.id)
    assert "no destination" in (letter.last_error or "")
    assert "letter.refuse" in list_events(store, forged.id), "the refusal is recorded"
    store.destinations.grant("ada", chat.place(), name="room")
    store.messages.send("now I may", agent="ada", to="room")
    chat.deliver()
    store.destinations.revoke("ada", "room")
    with pytest.raises(Refused):
        store.messages.send("and now?", agent="ada", to="room")
    assert chat.platform.words() == ["now I may"]


# -- 8 --------------------------------------------------------------------------------------------


def ask_in_a_run(store: Corral, chat: Chat, runner: Runner) -> tuple[str, str]:
    (session,) = list_woken_sessions(chat.says("shall we?", direct=True))
    store.internal.chat.start_turns()
    run = runner.begin()
    question = store.questions.ask(
        "Ship it?",
        options=["ship", "wait"],
        asker="agent:ada",
        run=run.id,
        deadline_ms=300 * SECOND,
        answerers=["user:ann"],
    )
    store.internal.chat.run_upkeep()
    chat.deliver()
    return question.id, session


def test_8_authorized_person_answers_once_and_the_card_shows_it(
    store: Corral, clock: ManualClock
) -> None:
    chat = start_chat(store)
    store.senders.approve("fake/ann", person="ann")
    store.senders.approve("fake/eve", person="eve")
    runner = Runner(store)
    question, session = ask_in_a_run(store, chat, runner)
    assert chat.platform.words() == ["Ship it?"]
    unauthorized = chat.says("1", sender="eve", kind=MessageKind.ANSWER, question=question)
    assert unauthorized.state == "refused"
    clicked = chat.says("1", sender="ann", kind=MessageKind.ANSWER, question=question)
    assert clicked.state == "routed"
    second = chat.says("2", sender="ann", kind=MessageKind.ANSWER, question=question)
    assert second.state == "refused"
    answered = store.questions.get(question)
    assert (answered.answer, answered.answered_by) == ("ship", "user:ann")
    # The run dies before it gets the answer.
    (run,) = store.runs.list(session=session, limit=1).items
    runner.die(run)
    store.internal.chat.finish_turns()
    store.internal.chat.run_upkeep()
    clock.advance(6 * SECOND)
    store.internal.chat.start_turns()
    first = runner.begin()
    runner.end(first, "let me see")
    store.internal.chat.finish_turns()
    store.internal.chat.start_turns()
    prompt = runner.prompt(runner.begin()) or ""
    assert "user:ann" in prompt
    assert "ship" in prompt
    assert store.mail.list(mailbox="agent:ada").items == [], "the answer is delivered once"
    chat.deliver()
    assert chat.platform.words()[0] == "Ship it?\nann answered: ship"


def test_8_late_click_on_an_expired_question_is_rejected(store: Corral, clock: ManualClock) -> None:
    chat = start_chat(store)
    store.senders.approve("fake/ann", person="ann")
    question, _ = ask_in_a_run(store, chat, Runner(store))
    clock.advance(301 * SECOND)
    late = chat.says("1", sender="ann", kind=MessageKind.ANSWER, question=question)
    assert (late.state, "deadline has passed" in (late.reason or "")) == ("refused", True)
    assert store.questions.get(question).state == "expired"
    chat.deliver()
    assert any("Too late" in text for text in chat.platform.words())


def test_8_question_without_buttons_is_answered_by_number_or_text(store: Corral) -> None:
    chat = start_chat(store, "silent")
    store.senders.approve("silent/ann", person="ann")
    question, _ = ask_in_a_run(store, chat, Runner(store))
    assert "1. ship" in chat.platform.words()[0]
    assert chat.says("WAIT").state == "routed"
    assert store.questions.get(question).answer == "wait"
    assert chat.says("2").routes != [], "without a question it is an ordinary message"


# -- 9 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "fires"), [("latest", 1), ("all", 3), ("skip", 0)])
def test_9_daily_task_follows_its_misfire_policy(
    store: Corral, clock: ManualClock, misfire: str, fires: int
) -> None:
    clock.at = 1_799_000_000_000
    chat = start_chat(store)
    runner = Runner(store)
    (session,) = list_woken_sessions(chat.says("hello", direct=True))
    store.internal.chat.start_turns()
    runner.end(runner.begin(), "hello")
    store.internal.chat.finish_turns()
    store.sessions.set_provider_session(session, "scripted", "provider-session")
    schedule = store.schedules.create(
        f"session:{session}",
        "the morning report",
        cron="0 9 * * *",
        time_zone="Europe/Berlin",
        misfire=misfire,
    )
    clock.advance(3 * DAY)
    store.schedules.fire_due()
    if store.internal.chat.start_turns():
        runner.fail(runner.begin())
        store.internal.chat.finish_turns()
        clock.advance(MINUTE)
    texts = []
    while store.internal.chat.start_turns():
        run = runner.begin()
        texts += texts_in(runner.prompt(run))
        runner.end(run, "report")
        store.internal.chat.finish_turns()
    assert texts == ["the morning report"] * fires
    assert store.schedules.get(schedule.id).state == "active", (
        "a failed run does not end the series"
    )
    store.schedules.delete(schedule.id)
    clock.advance(3 * DAY)
    store.schedules.fire_due()
    assert store.internal.chat.start_turns() == []


# -- 10 -------------------------------------------------------------------------------------------


def test_10_concurrent_runs_are_limited_and_others_queue_in_order(
    store: Corral, clock: ManualClock
) -> None:
    chat = start_chat(store)
    runner = Runner(store)
    for n in range(8):
        chat.says(f"from {n}", place=f"p{n}", direct=True)
        clock.advance(10)
    assert len(store.internal.chat.start_turns()) == 5
    assert store.internal.chat.start_turns() == []
    order = []
    for _ in range(8):
        run = runner.begin()
        order.append(runner.prompt(run))
        runner.end(run, "ok")
        store.internal.chat.finish_turns()
        store.internal.chat.start_turns()
    assert order == [f"from {n}" for n in range(8)]


def test_10_message_that_arrives_as_a_run_ends_is_not_lost(store: Corral) -> None:
    chat = start_chat(store)
    runner = Runner(store)
    (session,) = list_woken_sessions(chat.says("first", direct=True))
    store.internal.chat.start_turns()
    run = runner.begin()
    store.sessions.set_provider_session(session, "scripted", "provider-session")
    runner.end(run, "one")
    chat.says("second", direct=True)
    store.internal.chat.finish_turns()
    store.internal.chat.start_turns()
    run = runner.begin()
    assert runner.prompt(run) == "second"
    runner.end(run, "two")
    store.internal.chat.finish_turns()
    chat.deliver()
    assert chat.platform.words() == ["one", "two"]


def test_10_long_command_is_not_mistaken_for_a_dead_run(store: Corral, clock: ManualClock) -> None:
    chat = start_chat(store)
    runner = Runner(store)
    chat.says("a long build", direct=True)
    store.internal.chat.start_turns()
    run = runner.begin()
    for _ in range(4):
        clock.advance(5 * MINUTE)
        assert store.internal.chat.finish_turns() == []
        assert store.internal.chat.start_turns() == []
    clock.advance(HOUR)
    runner.end(run, "built")
    store.internal.chat.finish_turns()
    chat.deliver()
    assert chat.platform.words() == ["built"]
