"""Mail after crashes: no letter is lost or sent twice, and senders are notified once."""

from pathlib import Path

from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.kernel.clock import HOUR, MINUTE
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

OUT = "queue:out"
BOX = "agent:bob"
SENDER = "agent:ada"
BODIES = ["one", "two", "three"]


def put_all(store: Corral, world: World) -> None:
    for body in BODIES:
        store.mail.put(OUT, body, key=body)
        world.record(f"accepted {body}")


def deliver_all(store: Corral, world: World) -> None:
    """Deliver all letters; each is marked unconfirmed before its side effect."""
    while letters := store.mail.claim(OUT, owner="worker"):
        store.mail.begin_delivery(letters[0])
        world.record(f"sent {letters[0].body}")
        store.mail.ack(letters[0])


def resolve_and_deliver(store: Corral, world: World) -> None:
    """Resolve unconfirmed letters by the side effects that happened, then deliver the rest."""
    for letter in store.mail.list(state="unconfirmed").items:
        store.mail.resolve(letter.id, delivered=f"sent {letter.body}" in world.records)
    deliver_all(store, world)


def check_all_sent_once(store: Corral, world: World) -> None:
    sent = [record for record in world.records if record.startswith("sent")]
    assert sorted(sent) == sorted(f"sent {body}" for body in BODIES)
    assert get_states(store, OUT) == {"one": "done", "two": "done", "three": "done"}


def get_states(store: Corral, mailbox: str) -> dict[object, str]:
    letters = store.mail.list(mailbox=mailbox, all=True).items
    assert len({letter.body for letter in letters}) == len(letters), "no letter exists twice"
    return {letter.body: letter.state for letter in letters}


def list_notices(store: Corral) -> list[Letter]:
    return store.mail.list(mailbox=SENDER, all=True).items


def test_accepted_letter_survives_a_crash_and_is_not_duplicated(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def check_and_put_again(store: Corral, world: World) -> None:
        accepted = [record.split()[1] for record in world.records]
        letters = get_states(store, OUT)
        assert list(letters)[::-1][: len(accepted)] == accepted
        put_all(store, world)  # the caller has no result for some of them and puts them again
        deliver_all(store, world)

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(put_all, recover=check_and_put_again, check=check_all_sent_once),
    )


def test_begin_delivery_prevents_sending_twice(fresh_url: FreshUrl, tmp_path: Path) -> None:
    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            deliver_all, prepare=put_all, recover=resolve_and_deliver, check=check_all_sent_once
        ),
    )


def test_work_continues_in_order_after_a_worker_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare(store: Corral, world: World) -> None:
        for body in BODIES:
            store.mail.put(BOX, body)

    def work(store: Corral, world: World) -> None:
        worker = f"worker at {world.clock.now()}"
        letters = store.mail.claim(BOX, owner=worker)
        while letters:
            world.record(str(letters[0].body))
            letters = store.mail.ack_and_claim(letters[0], owner=worker)

    def check(store: Corral, world: World) -> None:
        assert get_states(store, BOX) == {"one": "done", "two": "done", "three": "done"}
        # Only the letter that the crashed worker had claimed may be processed twice.
        repeated = len(world.records) - len(BODIES)
        assert repeated in (0, 1)
        without_repeat = [
            record
            for before, record in zip([None, *world.records], world.records, strict=False)
            if record != before
        ]
        assert without_repeat == BODIES

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(work, prepare=prepare, recover=work, check=check)
    )


def fail_until_dead(store: Corral, world: World) -> None:
    while letters := store.mail.claim(BOX, owner="worker"):
        store.mail.fail(letters[0], "the printer is offline")
        world.clock.advance(5 * MINUTE)


def put_one_from_sender(store: Corral, world: World) -> None:
    store.settings.set("mail.max_attempts", 2)
    store.mail.put(BOX, "hello", sender=SENDER)


def check_dead_and_notified_once(store: Corral, world: World) -> None:
    assert get_states(store, BOX) == {"hello": "dead"}
    (notice,) = list_notices(store)
    assert notice.body["undelivered"] == store.mail.dead().items[0].id


def test_failing_letter_dies_and_notifies_its_sender_once(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            fail_until_dead,
            prepare=put_one_from_sender,
            recover=fail_until_dead,
            check=check_dead_and_notified_once,
        ),
    )


def test_poison_letter_dies_and_notifies_its_sender_once(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def claim_without_ack(store: Corral, world: World) -> None:
        while store.mail.claim(BOX, owner="worker"):
            world.clock.advance(5 * MINUTE)

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            claim_without_ack,
            prepare=put_one_from_sender,
            recover=claim_without_ack,
            check=check_dead_and_notified_once,
        ),
    )


def test_letter_expires_and_notifies_its_sender_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def put(store: Corral, world: World) -> None:
        store.mail.put(BOX, "hello", sender=SENDER, expires_at=world.clock.now() + HOUR)

    def expire(store: Corral, world: World) -> None:
        world.clock.advance(2 * HOUR)
        store.internal.mail.expire_due()

    def check(store: Corral, world: World) -> None:
        assert get_states(store, BOX) == {"hello": "expired"}
        assert len(list_notices(store)) == 1

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(expire, prepare=put, recover=expire, check=check)
    )


def test_resent_letter_notifies_once_for_each_refusal(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def put(store: Corral, world: World) -> None:
        store.mail.put(BOX, "hello", key="hello", sender=SENDER)

    def get_letter(store: Corral) -> Letter:
        return store.mail.put(BOX, "hello", key="hello")

    def refuse(store: Corral) -> None:
        for letter in store.mail.claim(BOX, owner="worker"):
            store.mail.refuse(letter, "unknown sender")

    def refuse_resend_refuse(store: Corral, world: World) -> None:
        refuse(store)
        store.mail.resend(get_letter(store).id)
        world.record("resent")
        refuse(store)

    def finish(store: Corral, world: World) -> None:
        refuse(store)
        if "resent" not in world.records:
            # The events show whether the letter was sent again.
            verbs = [event.verb for event in store.events.after().items]
            if "resend" not in verbs:
                store.mail.resend(get_letter(store).id)
            refuse(store)

    def check(store: Corral, world: World) -> None:
        assert get_states(store, BOX) == {"hello": "refused"}
        assert len(list_notices(store)) == 2

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(refuse_resend_refuse, prepare=put, recover=finish, check=check),
    )
