"""Hostile chat participants: unauthorized answers, forged cards, commands and mentions."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.adapters.channels.message_text import has_mention
from corral.api import Corral
from corral.domain.chat.channels import places
from corral.domain.chat.outbound import cards
from corral.domain.questions import ops as questions
from corral.domain.questions.model import Question
from corral.kernel.clock import MINUTE, ManualClock
from tests.support.fake_channels import Chat, Runner
from tests.support.grouped_cases import each_case
from tests.support.store import rows
from tests.support.threads import SECONDS

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def chat(store: Corral) -> Chat:
    """A public chat with an agent, an owner, a member, and unknown senders."""
    store.agents.create("ada", provider="scripted")
    public_chat = Chat(store)
    store.wirings.add("ada", channel=public_chat.channel.name)
    for sender, role in (("ann", "owner"), ("bob", "member")):
        public_chat.says("hello", sender=sender)
        store.senders.approve(f"fake/{sender}", person=sender, role=role)
    return public_chat


def ask_question(chat: Chat, *, answerers: list[str] | None = None, key: str = "k") -> Question:
    """Show a question card in the chat, asked by the run of its conversation."""
    store = chat.store
    if store.chat.conversations(chat.place())[0].run_id is None:
        store.internal.chat.start_turns()
        Runner(store).begin()
    question = store.questions.ask(
        "Delete it?",
        options=["yes", "no"],
        asker="agent:ada",
        run=str(store.chat.conversations(chat.place())[0].run_id),
        answerers=answerers or [],
        key=key,
    )
    store.internal.chat.run_upkeep()
    chat.deliver()
    return question


def answer_event(question: str, answer: str, sender: str, event: str) -> IncomingEvent:
    """Return the event of a button press on a card."""
    return IncomingEvent(
        event_id=event,
        place="room",
        sender=sender,
        kind=MessageKind.ANSWER,
        question=question,
        text=answer,
    )


@pytest.mark.parametrize("sender", ["bob", "mallory"])
@pytest.mark.parametrize("method", ["button", "text", "number"])
def test_unauthorized_answer_is_rejected_and_question_stays_open(
    store: Corral, chat: Chat, sender: str, method: str
) -> None:
    question = ask_question(chat, answerers=["user:ann"])
    if method == "button":
        message = store.messages.receive("fake", answer_event(question.id, "yes", sender, "x1"))
    else:
        message = chat.says("yes" if method == "text" else "1", sender=sender)
    assert message.state == "refused"
    assert store.questions.get(question.id).state == "open"
    chat.deliver()
    assert chat.platform.words()[-1], "the sender gets a reply"
    store.messages.receive("fake", answer_event(question.id, "no", "ann", "x2"))
    assert store.questions.get(question.id).answer == "no"


def test_concurrent_answers_accept_one_and_notify_the_other(store: Corral, chat: Chat) -> None:
    barrier = Barrier(2, timeout=SECONDS)

    def answer(event: IncomingEvent) -> str:
        barrier.wait()
        return store.messages.receive("fake", event).state

    for number in range(4):
        question = ask_question(chat, key=f"k{number}")
        events = [
            answer_event(question.id, choice, sender, f"{sender}{number}")
            for sender, choice in (("ann", "yes"), ("bob", "no"))
        ]
        with ThreadPoolExecutor(2) as pool:
            states = list(pool.map(answer, events))
        closed = store.questions.get(question.id)
        assert sorted(states) == ["refused", "routed"]
        winner = ("ann", "yes") if states[0] == "routed" else ("bob", "no")
        assert (closed.answered_by, closed.answer) == (f"user:{winner[0]}", winner[1])


def test_answer_to_an_invented_card_is_rejected(store: Corral, chat: Chat) -> None:
    question = ask_question(chat, answerers=["user:ann"])
    for id, event in (("qst_00000000000000000000000000", "a"), ("invalid", "b")):
        assert (
            store.messages.receive("fake", answer_event(id, "yes", "ann", event)).state == "refused"
        )
    assert store.questions.get(question.id).state == "open"


@pytest.mark.parametrize("command", ["stop", "clear"])
def test_direct_chat_with_new_members_is_no_longer_direct(
    store: Corral, chat: Chat, command: str
) -> None:
    direct_command = chat.says(f"/{command}", sender="bob", place="two", direct=True)
    assert direct_command.state == "routed", "any member of a direct chat may use commands"
    reaction = IncomingEvent(
        event_id="s", place="two", sender="bob", kind=MessageKind.REACTION, text="+"
    )
    store.messages.receive("fake", reaction)
    assert store.places.get("fake/two").direct, "a reaction does not change the direct flag"
    group_command = chat.says(f"/{command}", sender="bob", place="two", direct=False)
    assert group_command.state == "refused"
    assert not store.places.get("fake/two").direct
    assert chat.says(f"/{command}", sender="ann", place="two").state == "routed"


@pytest.mark.parametrize("sender", ["bob", "mallory"])
def test_control_commands_require_permission_in_any_spelling(
    store: Corral, chat: Chat, sender: str
) -> None:
    store.internal.chat.start_turns()
    run = Runner(store).begin()
    for text in ("/stop", "  /STOP now", "/stop@corral_bot", "/Clear"):
        assert chat.says(text, sender=sender).state == "refused", text
    assert store.runs.get(run.id).is_live
    assert chat.says("/stop", sender="ann").state == "routed"
    assert store.runs.get(run.id).state == "stopping"


@each_case(
    ("text", "account", "expected"),
    [
        ("@corral_bot look", "@corral_bot", True),
        ("look, @Corral_Bot!", "@corral_bot", True),
        ("@corral_bot: look", "@corral_bot", True),
        ("(@corral_bot)", "@corral_bot", True),
        ("@corral_bot2 look", "@corral_bot", False),
        ("@corral_bot-evil", "@corral_bot", False),
        ("mail me@corral_bot", "@corral_bot", False),
        ("@@corral_bot", "@corral_bot", False),
        ("@bot:here hi", "@bot:here", True),
        ("@bot:here: hi", "@bot:here", True),
        ("I ask @bot:here.", "@bot:here", True),
        ("@bot:here.evil.example", "@bot:here", False),
        ("@bot:here:8448", "@bot:here", False),
        ("@bot-here", "@bot.here", False),
        ("anything", "", False),
    ],
)
def test_mention_of_a_longer_name_does_not_address_our_account(
    text: str, account: str, expected: bool
) -> None:
    assert has_mention(text, account) is expected


@each_case("text", ["@ada.evil x", "@adam x", "x@ada", "@@ada"])
def test_agent_is_mentioned_by_its_full_name_only(store: Corral, chat: Chat, text: str) -> None:
    (wiring,) = store.wirings.list().items
    store.wirings.change(wiring.id, trigger="mention")
    assert chat.says(text).state == "ignored"
    assert chat.says("well, @ada: x").state == "routed"


def test_ended_card_is_closed_despite_many_open_ones(store: Corral, chat: Chat) -> None:
    with store.transaction() as tx:
        place = places.get_place(tx, chat.place())
        for number in range(cards.MAX_CARDS):
            cards.show_card(tx, questions.ask(tx, "Which?", asker=f"agent:a{number}"), place)
    question = ask_question(chat)
    store.questions.answer(question.id, "yes", by="user:ann")
    run = store.runs.get(str(store.chat.conversations(chat.place())[0].run_id))
    store.internal.runs.end_orphaned(run, verb="crash", reason="gone")
    store.internal.chat.finish_turns()
    store.internal.chat.run_upkeep()
    assert rows(store, "SELECT question_id FROM question_cards WHERE closed = 1") == [
        (question.id,)
    ]


def test_card_of_a_pruned_question_does_not_block_the_chat(
    store: Corral, chat: Chat, clock: ManualClock
) -> None:
    question = ask_question(chat)
    store.settings.set("questions.retention_ms", MINUTE)
    store.questions.answer(question.id, "yes", by="user:ann")
    clock.advance(2 * MINUTE)
    store.db.prune()
    assert chat.says("1").state == "routed"
    store.internal.chat.run_upkeep()
    assert chat.says("hello").state == "routed"
    assert rows(store, "SELECT count(*) FROM question_cards WHERE closed = 0") == [(0,)]
