"""Mailboxes of sessions: open, closed, replaced and unknown sessions."""

import pytest

from corral.api import Corral
from corral.kernel.clock import MINUTE, ManualClock
from corral.kernel.errors import IllegalMove, NotFound
from tests.support.cli_runner import Cli
from tests.support.fake_channels import Runner
from tests.support.grouped_cases import each_case
from tests.support.prompt_parser import quotes_in
from tests.support.store import refuses

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def runner(store: Corral) -> Runner:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    return Runner(store)


def test_letter_to_an_unknown_session_is_rejected(store: Corral, runner: Runner) -> None:
    gone = "session:ses_nothing"
    with refuses(store, NotFound):
        store.mail.put(gone, "hello")
    with refuses(store, NotFound):
        store.mail.write("ada", "hello", to=gone)
    with refuses(store, NotFound):
        store.timers.set(gone, "hello", delay_ms=MINUTE)
    with refuses(store, NotFound):
        store.schedules.create(gone, "hello", every_ms=MINUTE)
    with refuses(store, NotFound):
        store.alerts.add(["failed"], target_kind="mailbox", target=gone)
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
    with refuses(store, IllegalMove):
        store.mail.put(f"session:{session.id}", "hello")
    store.sessions.reopen(session.id)
    assert store.mail.put(f"session:{session.id}", "hello").state == "waiting"


def replaced(store: Corral) -> tuple[str, str]:
    """Return the mailboxes of a closed session and of its successor."""
    before = store.mail.write("ben", "one", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=before).items[0].id)
    store.sessions.close(before.removeprefix("session:"))
    after = store.mail.write("ben", "two", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=after).items[0].id)
    assert before != after
    return before, after


def test_letter_to_a_replaced_session_goes_to_its_successor(store: Corral, runner: Runner) -> None:
    before, between = replaced(store)
    assert store.mail.put(before, "put").mailbox == between
    assert store.mail.write("ben", "written", to=before).mailbox == between
    store.sessions.close(between.removeprefix("session:"))
    after = store.mail.write("ben", "three", to="ada", wake=True).mailbox
    assert after not in (before, between)
    assert store.mail.put(before, "through two successors").mailbox == after
    assert store.mail.list(mailbox=before).items == []


def test_task_of_a_replaced_session_wakes_its_successor(
    store: Corral, runner: Runner, clock: ManualClock
) -> None:
    before = store.mail.write("ben", "one", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=before).items[0].id)
    session = before.removeprefix("session:")
    task = store.schedules.task("ada", "report", session=session, delay_ms=MINUTE)
    store.sessions.close(session)
    after = store.mail.write("ben", "two", to="ada", wake=True).mailbox
    store.mail.drop(store.mail.list(mailbox=after).items[0].id)
    clock.advance(MINUTE)
    (letter,) = store.schedules.fire_due()
    assert letter.mailbox == after
    store.internal.chat.start_turns()
    (quote,) = quotes_in(runner.prompt(runner.begin()))
    assert (quote.source, quote.text) == (f"scheduled task {task.id}", "report")


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


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], url: str) -> Cli:
    return Cli(capsys, url)


def test_cli_reports_an_unknown_session(cli: Cli) -> None:
    done = cli("mail", "put", "session:ses_nothing", "hello")
    assert done.code == cli("session", "show", "ses_0").code != 0
    assert "ses_nothing" in done.err


@each_case("mailbox", ["run:run_1", "group:team", "team"])
def test_other_address_kinds_are_rejected(cli: Cli, mailbox: str) -> None:
    assert cli("mail", "put", mailbox, "hello").code == 2
