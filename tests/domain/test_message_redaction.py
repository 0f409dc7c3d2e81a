"""Secrets in posts, messages, questions and decisions are redacted before they are stored."""

from pathlib import Path

import pytest

from corral.adapters.channels.contract import IncomingEvent
from corral.api import Corral
from tests.support.fake_channels import Chat
from tests.support.race_factory import RaceFactory
from tests.support.store import contents

KEY = "ghp_" + "a1B2c3D4e5F6" * 3


def test_secret_in_a_post_is_not_stored(store: Corral) -> None:
    for name in ("ada", "ben"):
        store.agents.create(name)
    store.groups.create("crew", members=["agent:ada", "agent:ben"])
    post = store.groups.post("crew", f"use {KEY} for it", author="agent:ada", key="k")
    assert post.text == "use [redacted] for it"
    assert store.groups.post("crew", f"use {KEY} for it", author="agent:ada", key="k") == post
    store.groups.send("agent:ben", f"or {KEY}", author="agent:ada")
    store.groups.broadcast(f"all: {KEY}", author="agent:ada")
    assert [letter.body["text"] for letter in store.mail.list(mailbox="agent:ben").items] == [
        "use [redacted] for it",
        "or [redacted]",
        "all: [redacted]",
    ]
    assert KEY not in str(contents(store))


@pytest.mark.usefixtures("fake_channels")
def test_secret_in_a_chat_message_is_redacted_everywhere(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    store.wirings.add("ada", channel=chat.channel.name)
    single = chat.says(f"use {KEY} for it")
    assert single.text == "use [redacted] for it"
    events = [
        IncomingEvent(event_id=f"t{n}", place="room", sender="ann", text=f"{n}: {KEY}")
        for n in range(3)
    ]
    store.messages.receive_all(chat.channel.id, events)
    messages = store.messages.list().items[::-1]
    assert [message.text for message in messages] == [
        "use [redacted] for it",
        *(f"{n}: [redacted]" for n in range(3)),
    ]
    letters = [
        store.mail.get(str(message.routes[0].letter_id)).body["text"] for message in messages
    ]
    assert letters == [message.text for message in messages]
    assert KEY not in str(contents(store))


def test_secret_in_a_question_or_answer_is_not_stored(store: Corral) -> None:
    question = store.questions.ask(
        f"Is {KEY} right?", options=[f"no, {KEY}2", "yes"], free_text=True
    )
    assert question.text == "Is [redacted] right?"
    answered = store.questions.answer(question.id, f"take {KEY}")
    assert answered.answer == "take [redacted]"
    assert store.questions.answer(question.id, f"take {KEY}") == answered, (
        "a repeated answer is idempotent"
    )
    withdrawn = store.questions.ask("Which?", asker="agent:ada")
    store.questions.withdraw(withdrawn.id, reason=f"it is {KEY}")
    assert KEY not in str(contents(store))


def test_secret_in_a_decision_is_not_stored(store: Corral) -> None:
    decision = store.decisions.record(
        f"Use {KEY}",
        rationale=f"because of {KEY}",
        alternatives=[f"or {KEY}"],
        confirm=True,
        author="agent:ada",
    )
    assert (decision.title, decision.alternatives) == ("Use [redacted]", ["or [redacted]"])
    store.decisions.reject(decision.id, reason=f"{KEY} is rejected")
    assert KEY not in str(contents(store))


def test_title_from_a_prompt_does_not_split_a_secret(store: Corral, tmp_path: Path) -> None:
    """A part of a secret does not match any pattern, so it would not be redacted."""
    store.agents.create("ada", command="true")
    for length in (*range(20, 60, 4), *range(150, 200, 4)):
        prompt = "x" * length + f" {KEY}"
        run = store.runs.start(prompt=prompt, agent="ada", project=str(tmp_path))
        assert KEY[:8] not in f"{run.title} {store.sessions.get(str(run.session_id)).title}"
    race = RaceFactory(store, tmp_path / "r").start("ada", prompt=f"{'x' * 40} {KEY}")
    assert race.name == f"{'x' * 40} [redacted]"
    assert KEY[:8] not in str(contents(store))
