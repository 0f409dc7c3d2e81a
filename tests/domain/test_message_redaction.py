"""Secrets in posts, messages, questions and decisions are redacted before they are stored."""

from pathlib import Path

import pytest

from corral.adapters.channels.contract import IncomingEvent
from corral.api import Corral
from corral.domain.mail.outcomes import MAX_ERROR
from corral.domain.races import round_steps
from corral.domain.runs.outcome import MAX_REASON
from corral.domain.schedules import occurrences
from corral.domain.schedules.model import ScriptResult
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid
from corral.kernel.exit_status import ExitStatus
from corral.kernel.validation import MAX_NAME
from tests.support.fake_channels import Chat
from tests.support.race_factory import RaceFactory
from tests.support.run_factories import queued, starting
from tests.support.store import contents, list_events

KEY = "ghp_" + "a1B2c3D4e5F6" * 3
KEY_PART = KEY[:8]
PEM_LINES = ["Zm9vYmFyYmF6cXV4" * 4 + str(n) for n in range(10)]
PEM = "\n".join(["-----BEGIN PRIVATE KEY-----", *PEM_LINES, "-----END PRIVATE KEY-----"])


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


@pytest.mark.usefixtures("fake_channels")
@pytest.mark.parametrize("secret", [KEY, PEM], ids=["token", "PEM key"])
def test_split_message_does_not_split_a_secret(store: Corral, secret: str) -> None:
    """The fake platform accepts 200 characters."""
    place = store.places.register(Chat(store).channel.name, "room")
    for length in range(160, 200, 6):
        store.messages.send_as_system(place.id, "x" * length + "=" + secret)
    stored = str(contents(store))
    assert KEY_PART not in stored
    assert KEY[-8:] not in stored
    assert not any(line in stored for line in PEM_LINES)
    assert "secret.redact" in list_events(store)


def test_shortened_error_of_a_letter_does_not_split_a_secret(
    store: Corral, clock: ManualClock
) -> None:
    store.settings.set("mail.max_attempts", 2)
    store.mail.put("queue:work", "body")
    for number in range(2):
        (letter,) = store.mail.claim("queue:work", owner="me")
        store.mail.fail(letter, "x" * (MAX_ERROR - 10 - number) + f" {KEY}")
        clock.advance(DAY)
    assert store.mail.get(letter.id).state == "dead"
    assert KEY_PART not in str(contents(store))


def test_shortened_reason_of_a_run_does_not_split_a_secret(store: Corral) -> None:
    reason = "x" * (MAX_REASON - 10) + f"={KEY}"
    store.internal.runs.fail(queued(store).id, reason=reason)
    run = starting(store)
    store.internal.runs.record_end(run, ExitStatus(exit_code=1, reason=reason))
    run = starting(store)
    until = store.now() + DAY
    store.internal.runs.park(run, until=until, reason="x" * (MAX_NAME - 10) + f"={KEY}")
    assert KEY_PART not in str(contents(store))


def test_shortened_reason_in_a_race_does_not_split_a_secret(store: Corral, tmp_path: Path) -> None:
    races = RaceFactory(store, tmp_path / "r")
    race = races.start("ada", "ben")
    reason = "x" * (round_steps.MAX_REASON - 10) + f"={KEY}"
    with store.transaction() as tx:
        held_round = round_steps.acquire_round(tx, race.latest.id, "tests")
        round_steps.mark_failed(tx, held_round, race.latest.attempts[0], reason)
        round_steps.mark_cancelled(tx, held_round, race.latest.attempts[1], reason)
    judged = races.start("ada", "ben")
    races.judge(judged, [[1], [2]], "x" * (round_steps.MAX_VERDICT_REASON - 10) + f"={KEY}")
    assert KEY_PART not in str(contents(store))


def test_race_name_with_a_secret_is_rejected(store: Corral, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as rejected:
        RaceFactory(store, tmp_path / "r").start("ada", name="x" * 50 + f"={KEY}")
    assert rejected.value.code == "invalid"
    assert KEY_PART not in str(contents(store))


def test_shortened_reason_of_a_script_does_not_split_a_secret(
    store: Corral, clock: ManualClock
) -> None:
    store.schedules.create("queue:x", "tick", every_ms=DAY, script="true")
    clock.advance(DAY)
    store.schedules.fire_due()
    result = ScriptResult(False, "x" * (occurrences.MAX_REASON - 10) + f"={KEY}", failed=True)
    with store.transaction() as tx:
        claimed, _ = occurrences.claim_script(tx, owner="me")
        assert claimed is not None
        occurrences.record_script_result(tx, claimed, result, exit_code=1, output="")
    assert KEY_PART not in str(contents(store))
