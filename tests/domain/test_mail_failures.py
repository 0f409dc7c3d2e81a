"""Undelivered letters: back-off, dead letters, expiry, refusal, resend and drop."""

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held, IllegalMove, Invalid, NotFound
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, unchanged

EACH_MAILBOX_KIND = pytest.mark.parametrize("mailbox", ["agent:ada", "queue:builds"])
DELAYS = [5, 10, 20, 40, 80, 80]  # seconds: the default setting; the last delay repeats


def claim_one(store: Corral, mailbox: str = "agent:ada", owner: str = "o") -> Letter:
    (letter,) = store.mail.claim(mailbox, owner=owner)
    return letter


def fail_until_dead(store: Corral, clock: ManualClock, mailbox: str = "agent:ada") -> Letter:
    """Fail the only letter of a mailbox until it is dead, and return it."""
    while True:
        letter = store.mail.fail(claim_one(store, mailbox), "still no")
        if letter.state is LetterState.DEAD:
            return letter
        clock.at = letter.due_at


def list_notices(store: Corral, mailbox: str = "user:eve") -> list[dict[str, object]]:
    return [letter.body for letter in store.mail.list(mailbox=mailbox).items]


# -- failing ---------------------------------------------------------------------------------


@EACH_MAILBOX_KIND
def test_failed_letter_is_due_after_back_off_with_its_error(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, 1)
    failed = store.mail.fail(claim_one(store, mailbox), "no route")
    assert (failed.state, failed.owner, failed.last_error) == (
        LetterState.WAITING,
        None,
        "no route",
    )
    assert 5 * SECOND <= failed.due_at - clock.now() <= 5.5 * SECOND
    assert list_events(store) == ["letter.put", "letter.fail"]
    clock.at = failed.due_at - 1
    assert store.mail.claim(mailbox, owner="o") == []
    clock.advance(1)
    retried = claim_one(store, mailbox)
    assert (retried.id, retried.attempts, retried.last_error) == (failed.id, 2, "no route")


@EACH_MAILBOX_KIND
def test_back_off_grows_and_the_sixth_failure_is_final(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, 1)
    pauses = []
    for _ in range(5):
        failed = store.mail.fail(claim_one(store, mailbox), "no")
        pauses.append((failed.due_at - clock.now()) / SECOND)
        clock.at = failed.due_at
    for pause, delay in zip(pauses, DELAYS, strict=False):
        assert delay <= pause <= delay * 1.1
    dead = store.mail.fail(claim_one(store, mailbox), "final error")
    assert (dead.state, dead.attempts) == (LetterState.DEAD, 6)
    assert (dead.last_error, dead.ended_at) == ("final error", clock.now())
    assert list_events(store) == ["letter.put", *["letter.fail"] * 5, "letter.dead_letter"]


def test_back_off_and_max_attempts_are_project_settings(store: Corral, clock: ManualClock) -> None:
    store.settings.set("mail.max_attempts", 2, scope="project:prj_1")
    store.settings.set("mail.backoff_ms", [60_000], scope="project:prj_1")
    store.mail.put("queue:one", 1, project="prj_1")
    store.mail.put("queue:two", 1)
    project_letter = store.mail.fail(claim_one(store, "queue:one"), "no")
    other_letter = store.mail.fail(claim_one(store, "queue:two"), "no")
    assert project_letter.due_at - clock.now() >= MINUTE > other_letter.due_at - clock.now()
    clock.at = project_letter.due_at
    assert store.mail.fail(claim_one(store, "queue:one"), "no").state is LetterState.DEAD
    assert store.mail.fail(claim_one(store, "queue:two"), "no").state is LetterState.WAITING


def test_last_back_off_delay_repeats(store: Corral, clock: ManualClock) -> None:
    store.settings.set("mail.max_attempts", 50)
    store.mail.put("agent:ada", 1)
    for _ in range(9):
        failed = store.mail.fail(claim_one(store), "no")
        pause = failed.due_at - clock.now()
        clock.at = failed.due_at
    assert 80 * SECOND <= pause <= 88 * SECOND


def test_attempts_count_across_owners(store: Corral, clock: ManualClock) -> None:
    store.settings.set("mail.max_attempts", 2)
    store.mail.put("agent:ada", 1)
    clock.at = store.mail.fail(claim_one(store, owner="a"), "no").due_at
    assert store.mail.fail(claim_one(store, owner="b"), "no").state is LetterState.DEAD


def test_long_error_is_truncated_and_empty_error_gets_a_text(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", 1)
    failed = store.mail.fail(claim_one(store), "é" * 100_000)
    assert failed.last_error == "é" * 8_191 + "…"
    clock.at = failed.due_at
    assert store.mail.fail(claim_one(store), "").last_error == "no reason given"


@pytest.mark.parametrize("error", ["a\0b", "\ud800"], ids=ascii)
def test_fail_rejects_an_invalid_error_text(store: Corral, error: str) -> None:
    store.mail.put("agent:ada", 1)
    letter = claim_one(store)
    with raises_without_change(store, Invalid):
        store.mail.fail(letter, error)


def test_fail_accepts_an_id_with_a_fence(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    letter = claim_one(store)
    with raises_without_change(store, Invalid):
        store.mail.fail(letter.id, "no")
    assert store.mail.fail(letter.id, "no", fence=letter.fence).last_error == "no"


# -- dead ------------------------------------------------------------------------------------


def test_dead_letter_is_listed_and_not_claimable(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    dead = fail_until_dead(store, clock)
    assert store.mail.dead().items == [dead]
    clock.advance(DAY)
    assert store.mail.claim("agent:ada", owner="o") == []


def test_sender_of_a_dead_letter_is_notified_once(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, key="k", sender="user:eve", project="prj_1")
    dead = fail_until_dead(store, clock)
    assert list_notices(store) == [
        {
            "kind": "undelivered",
            "undelivered": dead.id,
            "mailbox": "agent:ada",
            "state": "dead",
            "reason": "still no",
            "key": "k",
        }
    ]
    with raises_without_change(store, IllegalMove):
        store.mail.fail(dead, "again")
    assert len(list_notices(store)) == 1


def test_notice_has_no_sender_so_bounces_cannot_loop(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, sender="user:eve")
    fail_until_dead(store, clock)
    fail_until_dead(store, clock, "user:eve")
    assert [letter.mailbox for letter in store.mail.dead().items] == ["user:eve", "agent:ada"]
    assert store.mail.list().items == []


def test_letter_without_sender_causes_no_notice(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    fail_until_dead(store, clock)
    assert store.mail.list().items == []


@EACH_MAILBOX_KIND
def test_poison_letter_becomes_a_dead_letter(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    letter = store.mail.put(mailbox, "poison", sender="user:eve")
    for attempt in range(1, 7):
        assert claim_one(store, mailbox).attempts == attempt
        clock.advance(MINUTE)
    assert store.mail.claim(mailbox, owner="o") == []
    dead = store.mail.get(letter.id)
    assert dead.state is LetterState.DEAD
    assert dead.last_error == "every lease expired without an acknowledgement"
    assert [notice["undelivered"] for notice in list_notices(store)] == [letter.id]


def test_claim_returns_the_letter_behind_a_poison_letter(store: Corral, clock: ManualClock) -> None:
    store.settings.set("mail.max_attempts", 1)
    store.mail.put("agent:ada", "poison")
    store.mail.put("agent:ada", "fine")
    claim_one(store)
    clock.advance(MINUTE)
    assert claim_one(store).body == "fine"


def test_ack_and_claim_moves_a_poison_letter_to_dead_letters(
    store: Corral, clock: ManualClock
) -> None:
    store.settings.set("mail.max_attempts", 1)
    store.mail.put("agent:ada", "first")
    store.mail.put("agent:ada", "poison")
    first_letter, _ = store.mail.claim("agent:ada", owner="o", limit=2)
    store.mail.put("agent:ada", "fine")
    store.mail.renew(first_letter, lease_ms=HOUR)
    clock.advance(MINUTE)
    (next_letter,) = store.mail.ack_and_claim(first_letter, owner="o")
    assert next_letter.body == "fine"
    assert [letter.body for letter in store.mail.dead().items] == ["poison"]


def test_poison_letter_keeps_the_error_of_an_earlier_failure(
    store: Corral, clock: ManualClock
) -> None:
    store.settings.set("mail.max_attempts", 2)
    store.mail.put("agent:ada", 1)
    clock.at = store.mail.fail(claim_one(store), "no route").due_at
    claim_one(store)
    clock.advance(MINUTE)
    assert store.mail.claim("agent:ada", owner="o") == []
    assert store.mail.dead().items[0].last_error == "no route"


# -- refusal ---------------------------------------------------------------------------------


def test_refused_letter_ends_and_notifies_its_sender(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, sender="user:eve")
    refused = store.mail.refuse(claim_one(store), "wrong recipient")
    assert (refused.state, refused.last_error) == (LetterState.REFUSED, "wrong recipient")
    assert refused.ended_at == clock.now()
    (notice,) = list_notices(store)
    assert (notice["state"], notice["reason"]) == ("refused", "wrong recipient")
    assert store.mail.list(state="refused").items == [refused]


@each_case("reason", ["", "a\0b", "x" * 8_193], ids=["empty", "nul", "long"])
def test_refuse_requires_a_valid_reason(store: Corral, reason: str) -> None:
    store.mail.put("agent:ada", 1)
    letter = claim_one(store)
    with raises_without_change(store, Invalid):
        store.mail.refuse(letter, reason)


# -- expiry ----------------------------------------------------------------------------------


@EACH_MAILBOX_KIND
def test_unclaimed_letter_expires_and_notifies_its_sender(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    letter = store.mail.put(mailbox, 1, sender="user:eve", expires_at=clock.now() + 10)
    clock.advance(9)
    with unchanged(store):
        assert store.internal.mail.expire_due() == []
    clock.advance(1)
    (expired,) = store.internal.mail.expire_due()
    assert (expired.id, expired.state) == (letter.id, LetterState.EXPIRED)
    assert [notice["state"] for notice in list_notices(store)] == ["expired"]
    with unchanged(store):
        assert store.internal.mail.expire_due() == []


@EACH_MAILBOX_KIND
def test_expired_letter_is_not_claimed_before_the_sweep(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, "stale", sender="user:eve", expires_at=clock.now() + 10)
    store.mail.put(mailbox, "fresh")
    clock.advance(10)
    assert claim_one(store, mailbox).body == "fresh"
    assert [letter.body for letter in store.mail.list(state="expired").items] == ["stale"]
    assert len(list_notices(store)) == 1


def test_claimed_letter_does_not_expire_during_its_lease(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, expires_at=clock.now() + 10)
    letter = claim_one(store)
    clock.advance(10)
    with unchanged(store):
        assert store.internal.mail.expire_due() == []
    assert store.mail.ack(letter).state is LetterState.DONE


def test_expire_due_ends_at_most_limit_letters(store: Corral, clock: ManualClock) -> None:
    for n in range(3):
        store.mail.put("agent:ada", n, expires_at=clock.now() + 10 - n)
    clock.advance(10)
    assert [letter.body for letter in store.internal.mail.expire_due(limit=2)] == [2, 1]
    assert [letter.body for letter in store.internal.mail.expire_due(limit=2)] == [0]
    with raises_without_change(store, Invalid):
        store.internal.mail.expire_due(limit=0)


# -- resend and drop -------------------------------------------------------------------------


def test_resent_dead_letter_starts_over(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    dead = fail_until_dead(store, clock)
    clock.advance(HOUR)
    resent = store.mail.resend(dead.id)
    assert (resent.state, resent.attempts, resent.last_error) == (LetterState.WAITING, 0, None)
    assert (resent.ended_at, resent.due_at, resent.owner) == (None, clock.now(), None)
    assert claim_one(store).fence > dead.fence
    assert list_events(store)[-1] == "letter.resend"


def test_owner_before_a_resend_has_a_stale_fence(
    store: Corral,
) -> None:
    store.mail.put("agent:ada", 1)
    stale = claim_one(store)
    store.mail.drop(stale.id)
    store.mail.resend(stale.id)
    with raises_without_change(store, Held):
        store.mail.ack(stale)


def test_owner_that_failed_a_letter_has_a_stale_fence(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    letter = claim_one(store)
    store.mail.fail(letter, "no")
    with raises_without_change(store, Held):
        store.mail.ack(letter)
    with raises_without_change(store, Held):
        store.mail.fail(letter, "no, again")


def test_resent_letter_that_dies_again_notifies_its_sender_again(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", 1, sender="user:eve")
    store.mail.resend(fail_until_dead(store, clock).id)
    fail_until_dead(store, clock)
    assert len(list_notices(store)) == 2


@EACH_MAILBOX_KIND
def test_resent_letter_is_last_in_the_queue(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, "bad")
    refused = store.mail.refuse(claim_one(store, mailbox), "no")
    store.mail.put(mailbox, "second")
    clock.advance(1)
    store.mail.resend(refused.id)
    assert claim_one(store, mailbox).body == "second"


def test_resent_expired_letter_does_not_expire_again(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, expires_at=clock.now() + 10)
    clock.advance(10)
    (expired,) = store.internal.mail.expire_due()
    assert store.mail.resend(expired.id).expires_at is None
    assert store.internal.mail.expire_due() == []
    assert claim_one(store).id == expired.id


def test_dropped_letter_does_not_notify_its_sender(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, sender="user:eve")
    dead = fail_until_dead(store, clock)
    dropped = store.mail.drop(dead.id)
    assert (dropped.state, dropped.last_error) == (LetterState.REFUSED, "dropped by user:tester")
    assert len(list_notices(store)) == 1
    assert store.mail.dead().items == []


def test_waiting_letter_can_be_dropped_with_a_reason(store: Corral) -> None:
    letter = store.mail.put("agent:ada", 1)
    assert store.mail.drop(letter.id, reason="a mistake").last_error == "a mistake"
    assert store.mail.claim("agent:ada", owner="o") == []
    assert list_events(store) == ["letter.put", "letter.drop"]


def test_dropped_letter_can_be_resent(store: Corral) -> None:
    letter = store.mail.put("agent:ada", 1)
    store.mail.drop(letter.id)
    store.mail.resend(letter.id)
    assert claim_one(store).id == letter.id


def test_waiting_letter_cannot_be_resent_nor_dropped_twice(store: Corral) -> None:
    letter = store.mail.put("agent:ada", 1)
    with raises_without_change(store, IllegalMove):
        store.mail.resend(letter.id)
    store.mail.drop(letter.id)
    with raises_without_change(store, IllegalMove):
        store.mail.drop(letter.id)


def test_resend_and_drop_of_an_unknown_letter_raise_not_found(store: Corral) -> None:
    with raises_without_change(store, NotFound):
        store.mail.resend("let_7")
    with raises_without_change(store, NotFound):
        store.mail.drop("let_7")
