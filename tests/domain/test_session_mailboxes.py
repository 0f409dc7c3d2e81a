"""Mailboxes of sessions: open, closed, replaced and unknown sessions."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, LetterDraft
from corral.kernel.clock import MINUTE, SECOND, ManualClock
from corral.kernel.errors import IllegalMove, NotFound
from tests.support.cli_runner import Cli
from tests.support.fake_channels import Runner
from tests.support.grouped_cases import each_case
from tests.support.prompt_parser import quotes_in
from tests.support.store import list_events, raises_without_change, write

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def runner(store: Corral) -> Runner:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    return Runner(store)


def test_letter_to_an_unknown_session_is_rejected(store: Corral, runner: Runner) -> None:
    unknown_mailbox = "session:ses_unknown"
    with raises_without_change(store, NotFound):
        store.mail.put(unknown_mailbox, "hello")
    with raises_without_change(store, NotFound):
        store.mail.write("ada", "hello", to=unknown_mailbox)
    with raises_without_change(store, NotFound):
        store.timers.set(unknown_mailbox, "hello", delay_ms=MINUTE)
    with raises_without_change(store, NotFound):
        store.schedules.create(unknown_mailbox, "hello", every_ms=MINUTE)
    with raises_without_change(store, NotFound):
        store.alerts.add(["failed"], target_kind="mailbox", target=unknown_mailbox)
    assert store.mail.list().items == []


def test_session_mailbox_accepts_a_shortened_id(store: Corral, runner: Runner) -> None:
    session = store.sessions.open("ada")
    letter = store.mail.put(f"session:{session.id[:-2]}", "hello")
    assert letter.mailbox == f"session:{session.id}"


def test_letter_to_a_closed_session_without_successor_is_rejected(
    store: Corral, runner: Runner
) -> None:
    session = store.sessions.open("ada")
    store.sessions.close(session.id)
    with raises_without_change(store, IllegalMove):
        store.mail.put(f"session:{session.id}", "hello")
    store.sessions.reopen(session.id)
    assert store.mail.put(f"session:{session.id}", "hello").state == "waiting"


def create_successor(store: Corral) -> tuple[str, str]:
    """Return the mailboxes of a closed session and of its successor."""
    closed = store.mail.write("ben", "one", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=closed).items[0].id)
    store.sessions.close(closed.removeprefix("session:"))
    successor = store.mail.write("ben", "two", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=successor).items[0].id)
    assert closed != successor
    return closed, successor


def test_letter_to_a_replaced_session_goes_to_its_successor(store: Corral, runner: Runner) -> None:
    closed, successor = create_successor(store)
    assert store.mail.put(closed, "put").mailbox == successor
    assert store.mail.write("ben", "written", to=closed).mailbox == successor
    store.sessions.close(successor.removeprefix("session:"))
    last_successor = store.mail.write("ben", "three", to="ada", wake=True).mailbox
    assert last_successor not in (closed, successor)
    assert store.mail.put(closed, "through two successors").mailbox == last_successor
    assert store.mail.list(mailbox=closed).items == []


def test_put_last_stands_behind_the_letters_of_the_successor(
    store: Corral, clock: ManualClock, runner: Runner
) -> None:
    closed, successor = create_successor(store)
    later = store.mail.put(successor, "waits", due_at=clock.now() + SECOND)
    last = write(store, lambda tx: mail.put_last(tx, closed, "last"))
    assert (last.mailbox, last.queue_at) == (successor, later.queue_at)


def test_task_of_a_replaced_session_wakes_its_successor(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    closed = store.mail.write("ben", "one", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=closed).items[0].id)
    session = closed.removeprefix("session:")
    task = store.schedules.prompt("ada", "report", session=session, delay_ms=MINUTE)
    store.sessions.close(session)
    successor = store.mail.write("ben", "two", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=successor).items[0].id)
    clock.advance(MINUTE)
    (letter,) = store.schedules.fire_due()
    assert letter.mailbox == successor
    store.internal.chat.start_turns()
    (quote,) = quotes_in(runner.prompt(runner.begin()))
    assert (quote.source, quote.text) == (f"scheduled prompt {task.id}", "report")


def test_scheduled_letter_to_a_closed_session_notifies_its_sender(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    session = store.sessions.open("ada")
    store.schedules.create(
        f"session:{session.id}", "hello", every_ms=MINUTE, sender="user:ann", overlap="skip"
    )
    store.sessions.close(session.id)
    clock.advance(MINUTE)
    (letter,) = store.schedules.fire_due()
    assert letter.state == "refused"
    assert session.id in str(letter.last_error)
    (notice,) = store.mail.list(mailbox="user:ann").items
    assert notice.body["undelivered"] == letter.id


# -- senders that are gone -----------------------------------------------------------------------


def put_from_a_closed_session(store: Corral, **options: Any) -> Letter:
    """Put a letter whose sender is a session that is closed afterwards."""
    session = store.sessions.open("ada")
    letter = store.mail.put("queue:work", "late", sender=f"session:{session.id}", **options)
    store.sessions.close(session.id)
    return letter


def assert_ended_without_notice(store: Corral, letter: Letter, state: str) -> None:
    assert store.mail.get(letter.id).state == state
    assert list_events(store, letter.id)[-1] == "letter.notice_undelivered"
    assert [item.mailbox for item in store.mail.list(all=True).items] == [letter.mailbox]


def test_refuse_succeeds_if_the_sending_session_is_closed(store: Corral, runner: Runner) -> None:
    put_from_a_closed_session(store)
    (letter,) = store.mail.claim("queue:work", owner="o")
    store.mail.refuse(letter, "wrong recipient")
    assert_ended_without_notice(store, letter, "refused")


def test_refuse_succeeds_if_the_sending_session_is_unknown(store: Corral) -> None:
    store.mail.put("queue:work", "late", sender="session:ses_unknown")
    (letter,) = store.mail.claim("queue:work", owner="o")
    store.mail.refuse(letter, "wrong recipient")
    assert_ended_without_notice(store, letter, "refused")


def test_last_failure_is_recorded_if_the_sending_session_is_closed(
    store: Corral, runner: Runner
) -> None:
    store.settings.set("mail.max_attempts", 1)
    put_from_a_closed_session(store)
    (letter,) = store.mail.claim("queue:work", owner="o")
    assert store.mail.fail(letter, "no route").state == "dead"
    assert_ended_without_notice(store, letter, "dead")


def test_sweep_expires_letters_of_closed_sessions(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    letter = put_from_a_closed_session(store, expires_at=clock.now() + MINUTE)
    clock.advance(MINUTE)
    assert [expired.id for expired in store.internal.mail.expire_due()] == [letter.id]
    assert_ended_without_notice(store, letter, "expired")


def test_claim_delivers_other_letters_if_the_sender_of_an_expired_one_is_closed(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    expired = put_from_a_closed_session(store, expires_at=clock.now() + MINUTE)
    other = store.mail.put("queue:work", "other")
    clock.advance(MINUTE)
    claimed = store.mail.claim("queue:work", owner="o", limit=2)
    assert [letter.id for letter in claimed] == [other.id]
    assert store.mail.get(expired.id).state == "expired"


def test_batch_with_a_known_key_returns_the_letter_of_a_replaced_session(
    store: Corral, runner: Runner
) -> None:
    closed, successor = create_successor(store)
    with store.transaction() as tx:
        first = mail.put_many(tx, [LetterDraft(closed, "hello", "k")])
    with store.transaction() as tx:
        assert mail.put_many(tx, [LetterDraft(closed, "hello", "k")]) == first
    assert store.mail.list(mailbox=successor).items == []


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], url: str) -> Cli:
    return Cli(capsys, url)


def test_cli_reports_an_unknown_session(cli: Cli) -> None:
    result = cli("mail", "put", "session:ses_unknown", "hello")
    assert result.code == cli("session", "show", "ses_0").code != 0
    assert "ses_unknown" in result.err


@each_case("mailbox", ["run:run_1", "group:team", "team"])
def test_other_address_kinds_are_rejected(cli: Cli, mailbox: str) -> None:
    assert cli("mail", "put", mailbox, "hello").code == 2
