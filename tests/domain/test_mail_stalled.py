"""`corral doctor` reports mailboxes whose letters no owner claims."""

from corral.api import Corral
from corral.domain.mail.queries import list_stalled
from corral.kernel.clock import DAY, HOUR, MINUTE, ManualClock
from corral.services.store.health import check_mailboxes
from tests.support.store import read


def list_stalled_mailboxes(store: Corral) -> list[str]:
    return [
        stalled_mailbox.mailbox
        for stalled_mailbox in read(store, lambda tx: list_stalled(tx, before=store.now() - HOUR))
    ]


def test_mailbox_with_an_old_unclaimed_letter_is_stalled(store: Corral, clock: ManualClock) -> None:
    for mailbox in ("user:ben", "queue:builds", "user:ann"):
        for number in range(3):
            store.mail.put(mailbox, number)
    store.mail.put("agent:later", 1, due_at=store.now() + DAY)
    assert check_mailboxes(store._database).state == "ok"
    clock.advance(HOUR + MINUTE)
    assert list_stalled_mailboxes(store) == ["queue:builds", "user:ann", "user:ben"]
    finding = check_mailboxes(store._database)
    assert (finding.state, "queue:builds" in finding.message, "1h1m" in finding.message) == (
        "warning",
        True,
        True,
    )
    for mailbox in ("user:ben", "queue:builds", "user:ann"):
        for letter in store.mail.claim(mailbox, owner="o", limit=3):
            store.mail.ack(letter)
    assert check_mailboxes(store._database).state == "ok"


def test_mailbox_with_a_live_lease_is_not_stalled(store: Corral, clock: ManualClock) -> None:
    store.mail.put("user:ben", "long work", priority=5)
    store.mail.put("user:ben", "next")
    store.mail.claim("user:ben", owner="o", lease_ms=4 * HOUR)
    clock.advance(2 * HOUR)
    assert list_stalled_mailboxes(store) == []
    clock.advance(4 * HOUR)
    assert list_stalled_mailboxes(store) == ["user:ben"]


def test_letter_in_back_off_is_stalled_only_after_its_retry_is_due(
    store: Corral, clock: ManualClock
) -> None:
    letter = store.mail.put("agent:ada", "work")
    clock.advance(2 * HOUR)
    (claimed,) = store.mail.claim("agent:ada", owner="o")
    store.mail.fail(claimed, "busy", pause_ms=HOUR)
    assert list_stalled_mailboxes(store) == []
    clock.advance(2 * HOUR + MINUTE)
    assert list_stalled_mailboxes(store) == ["agent:ada"]
    assert store.mail.get(letter.id).state == "waiting"


def test_letter_due_later_does_not_hide_a_stalled_lower_priority(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("user:ann", "tomorrow", priority=50, due_at=store.now() + DAY)
    store.mail.put("user:ann", "today")
    clock.advance(2 * HOUR)
    assert list_stalled_mailboxes(store) == ["user:ann"]
    store.settings.set("mail.stalled_ms", 3 * HOUR)
    assert check_mailboxes(store._database).state == "ok"
