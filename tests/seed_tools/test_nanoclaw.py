"""What was promised of chat channels (the ten behaviours), with a platform that does its worst.

Where the tool before had two message files a session and a container, here both ways are letters
and the container is a run; numbers of messages are one sequence for both directions.
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
from tests.support.store import record

pytestmark = pytest.mark.usefixtures("fake_channels")


def chat_with(store: Corral, kind: str = "fake", **wiring: str) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, kind)
    store.wirings.add("ada", channel=chat.channel.name, **wiring)
    return chat


def sessions_of(message: Message) -> list[str]:
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
    first = sessions_of(chat.says("x", place="one", thread="t1"))
    second = sessions_of(chat.says("x", place="one", thread="t2"))
    third = sessions_of(chat.says("x", place="two"))
    (ada, ben, tom), (ada_again, ben_again, tom_again) = first, second
    assert ada == ada_again == third[0], "one session for the agent, wherever it hears"
    assert ben == ben_again, "one for the chat, whatever the thread"
    assert tom != tom_again, "one for each thread"
    assert len({ada, ben, tom, tom_again}) == 4, "two agents never share one"
    owners = {store.sessions.get(id).agent_id for id in (ada, ben, tom)}
    assert len(owners) == 3


# -- 2 --------------------------------------------------------------------------------------------


def test_2_message_numbers_are_unique_and_in_commit_order(url: str) -> None:
    with corral.open(url) as store:
        chat = chat_with(store)
        chat.says("first")
        place = chat.place()
    each = 40

    def receive_messages(which: int) -> None:
        with corral.open(url) as mine:
            for n in range(each):
                talk = chat.__class__.__new__(chat.__class__)
                talk.__dict__ |= chat.__dict__ | {"store": mine}
                talk.says(f"{which}:{n}", event=f"{which}:{n}")

    def send_messages(which: int) -> None:
        with corral.open(url) as mine:
            for n in range(each):
                mine.messages.send_as_system(place, f"{which}:{n}")

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
        found = store.messages.list(place=place, limit=1_000).items[::-1]
        ours = [message for message in found if ":" in message.text]
        assert len({message.id for message in ours}) == len(ours) == 4 * each
        for direction in ("in", "out"):
            for which in (1, 2):
                said = [
                    int(message.text.split(":")[1])
                    for message in ours
                    if message.direction == direction and message.text.startswith(f"{which}:")
                ]
                assert said == list(range(each)), "each writer's own order is kept"
        letters = [message.letter_id for message in ours if message.direction == "out"]
        numbers = [int(str(letter).removeprefix("let_")) for letter in letters]
        assert len({*numbers}) == 2 * each
        check_store(store)


# -- 3 --------------------------------------------------------------------------------------------


def test_3_message_of_a_dead_run_is_retried_in_the_same_session(
    store: Corral, clock: ManualClock
) -> None:
    chat = chat_with(store)
    runner = Runner(store)
    message = chat.says("build it", direct=True)
    (letter_id,) = [route.letter_id for route in message.routes]
    (session,) = sessions_of(message)
    (first,) = store.internal.chat.start_turns()
    run = runner.begin()
    assert runner.prompt(run) == "build it"
    store.sessions.set_provider_session(session, "scripted", "its-own-id")
    fence = store.mail.get(str(letter_id)).fence
    assert store.internal.chat.start_turns() == [], "one at a time"
    runner.die(run)
    store.internal.chat.finish_turns()
    waiting = store.mail.get(str(letter_id))
    assert (waiting.state, waiting.attempts) == ("waiting", 1)
    with pytest.raises(Held):
        store.mail.ack(waiting.id, fence=fence)
    assert store.internal.chat.start_turns() == [], "not before its pause"
    clock.advance(6 * SECOND)
    (again,) = store.internal.chat.start_turns()
    assert again.id != first.id
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
    chat = chat_with(store)
    runner = Runner(store)
    store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    poison = chat.says("poison")
    after = chat.says("harmless", thread="other")
    began: list[int] = []
    for _ in range(60):
        if store.internal.chat.start_turns():
            run = runner.begin()
            if "harmless" in (runner.prompt(run) or ""):
                runner.end(run, "fine")
                store.internal.chat.finish_turns()
                break
            began.append(clock.now())
            runner.die(run)
            store.internal.chat.finish_turns()
        clock.advance(SECOND * 5)
    pauses = [later - earlier for earlier, later in pairwise(began)]
    assert len(began) == 6
    for pause, rung in zip(pauses, (5, 10, 20, 40, 80), strict=True):
        assert rung * SECOND <= pause <= rung * 1.1 * SECOND + 5 * SECOND
    dead = store.mail.get(str(poison.routes[0].letter_id))
    assert (dead.state, dead.attempts) == ("dead", 6)
    assert store.mail.get(str(after.routes[0].letter_id)).state == "done", "later ones still run"
    alerts = store.mail.list(mailbox="user:operator").items
    assert [alert.body["subject"] for alert in alerts] == [dead.id], "one alert"
    chat.deliver()
    told, answer = chat.platform.words()
    assert "could not be answered" in told
    assert answer == "fine"
    check_store(store)


# -- 5 --------------------------------------------------------------------------------------------


def test_5_messages_stay_ordered_when_a_channel_fails_twice(url: str, clock: ManualClock) -> None:
    with corral.open(url, clock=clock) as store:
        chat = chat_with(store)
        chat.says("first")
        chat.platform.outcomes = ["fail", "fail"]
        for text in ("m1", "m2"):
            store.messages.send(text, agent="ada", to="room")
        assert chat.deliver("one") == ["waiting"]
    clock.advance(MINUTE)
    with corral.open(url, clock=clock) as store:  # the host was started again
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
    chat = chat_with(store)
    runner = Runner(store)
    (session,) = sessions_of(chat.says("hello", direct=True))
    store.internal.chat.start_turns()
    run = runner.begin()
    chat.platform.outcomes = ["fail"] * 6
    runner.end(run, "my answer")
    store.internal.chat.finish_turns()
    for _ in range(6):
        chat.deliver()
        clock.advance(5 * MINUTE)
    (message,) = [each for each in store.messages.list().items if each.direction == "out"]
    assert (message.state, message.platform_ids) == ("undelivered", [])
    assert chat.platform.words() == []
    (notice,) = store.mail.list(mailbox=f"session:{session}").items
    assert notice.body["state"] == "dead"
    assert store.internal.chat.start_turns() == [], "a notice wakes no agent, so it cannot loop"
    chat.says("still there?", direct=True)
    store.internal.chat.start_turns()
    told = runner.prompt(runner.begin()) or ""
    assert "did not arrive" in told
    assert "still there?" in told


# -- 6 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fake", "forgetful"])
def test_6_crash_between_send_and_record_shows_one_copy(
    store: Corral, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from corral.services.chat.delivery import Delivery

    chat = chat_with(store, kind)
    chat.says("first")
    (sent,) = store.messages.send("hello", agent="ada", to="room")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Delivery, "_record", crash)
        with pytest.raises(KeyboardInterrupt):
            chat.deliver("one")
    assert chat.platform.words() == ["hello"]
    assert store.messages.get(sent.id).state == "queued", "nothing is shown as sent"
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
    found = store.mail.get(forged.id)
    assert "no destination" in (found.last_error or "")
    assert "letter.refuse" in record(store, forged.id), "it is on record"
    store.destinations.grant("ada", chat.place(), name="room")
    store.messages.send("now I may", agent="ada", to="room")
    chat.deliver()
    store.destinations.revoke("ada", "room")
    with pytest.raises(Refused):
        store.messages.send("and now?", agent="ada", to="room")
    assert chat.platform.words() == ["now I may"]


# -- 8 --------------------------------------------------------------------------------------------


def asked_in_a_run(store: Corral, chat: Chat, runner: Runner) -> tuple[str, str]:
    (session,) = sessions_of(chat.says("shall we?", direct=True))
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
    chat = chat_with(store)
    store.senders.approve("fake/ann", person="ann")
    store.senders.approve("fake/eve", person="eve")
    runner = Runner(store)
    question, session = asked_in_a_run(store, chat, runner)
    assert chat.platform.words() == ["Ship it?"]
    stranger = chat.says("1", sender="eve", kind=MessageKind.ANSWER, question=question)
    assert stranger.state == "refused"
    clicked = chat.says("1", sender="ann", kind=MessageKind.ANSWER, question=question)
    assert clicked.state == "routed"
    again = chat.says("2", sender="ann", kind=MessageKind.ANSWER, question=question)
    assert again.state == "refused"
    found = store.questions.get(question)
    assert (found.answer, found.answered_by) == ("ship", "user:ann")
    # The run dies before it has heard that.
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
    told = runner.prompt(runner.begin()) or ""
    assert "user:ann" in told
    assert "ship" in told
    assert store.mail.list(mailbox="agent:ada").items == [], "it is told once"
    chat.deliver()
    assert chat.platform.words()[0] == "Ship it?\nann answered: ship"


def test_8_late_click_on_an_expired_question_is_rejected(store: Corral, clock: ManualClock) -> None:
    chat = chat_with(store)
    store.senders.approve("fake/ann", person="ann")
    question, _ = asked_in_a_run(store, chat, Runner(store))
    clock.advance(301 * SECOND)
    late = chat.says("1", sender="ann", kind=MessageKind.ANSWER, question=question)
    assert (late.state, "deadline has passed" in (late.reason or "")) == ("refused", True)
    assert store.questions.get(question).state == "expired"
    chat.deliver()
    assert any("Too late" in words for words in chat.platform.words())


def test_8_question_without_buttons_is_answered_by_number_or_text(store: Corral) -> None:
    chat = chat_with(store, "silent")
    store.senders.approve("silent/ann", person="ann")
    question, _ = asked_in_a_run(store, chat, Runner(store))
    assert "1. ship" in chat.platform.words()[0]
    assert chat.says("WAIT").state == "routed"
    assert store.questions.get(question).answer == "wait"
    assert chat.says("2").routes != [], "with nothing asked, it is a message like any other"


# -- 9 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "fires"), [("latest", 1), ("all", 3), ("skip", 0)])
def test_9_daily_task_follows_its_misfire_policy(
    store: Corral, clock: ManualClock, misfire: str, fires: int
) -> None:
    clock.at = 1_799_000_000_000
    chat = chat_with(store)
    runner = Runner(store)
    (session,) = sessions_of(chat.says("hello", direct=True))
    store.internal.chat.start_turns()
    runner.end(runner.begin(), "hello")
    store.internal.chat.finish_turns()
    store.sessions.set_provider_session(session, "scripted", "it-remembers")
    made = store.schedules.create(
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
    done = []
    while store.internal.chat.start_turns():
        run = runner.begin()
        done += texts_in(runner.prompt(run))
        runner.end(run, "report")
        store.internal.chat.finish_turns()
    assert done == ["the morning report"] * fires
    assert store.schedules.get(made.id).state == "active", "a failed run does not end the series"
    store.schedules.delete(made.id)
    clock.advance(3 * DAY)
    store.schedules.fire_due()
    assert store.internal.chat.start_turns() == []


# -- 10 -------------------------------------------------------------------------------------------


def test_10_concurrent_runs_are_limited_and_others_queue_in_order(
    store: Corral, clock: ManualClock
) -> None:
    chat = chat_with(store)
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
    chat = chat_with(store)
    runner = Runner(store)
    (session,) = sessions_of(chat.says("first", direct=True))
    store.internal.chat.start_turns()
    run = runner.begin()
    store.sessions.set_provider_session(session, "scripted", "it-remembers")
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
    chat = chat_with(store)
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
