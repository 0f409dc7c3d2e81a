"""Mail, compared with a model under random operations: claims, outcomes and retries."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule

from corral.domain.mail.model import Letter
from corral.kernel.clock import MINUTE, SECOND
from corral.kernel.errors import CorralError, Held, IllegalMove
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)

QUEUE, ORDERED = "queue:work", "agent:ada"
MAX_ATTEMPTS = 2
DELAYS = [5 * SECOND, 20 * SECOND]
LEASE = 30 * SECOND
OPEN = ("waiting", "unconfirmed")


@dataclass
class ModelLetter:
    """A letter of the model."""

    number: int
    """The order in which letters were put. Ids have the same order, with gaps on PostgreSQL."""

    mailbox: str
    body: Any
    priority: int
    due_at: int
    position: int
    """The queue position; a failure changes it only in work queues."""

    expires_at: int | None
    sender: str | None
    key: str | None
    state: str = "waiting"
    owner: str | None = None
    claims: int = 0
    """The number of all claims; `attempts` restarts when the letter is resent."""

    attempts: int = 0
    valid: bool = False
    """Whether the fence of its last claim is still valid."""

    id: str = ""

    def is_claimed(self, now: int) -> bool:
        return self.state in OPEN and self.owner is not None and self.due_at > now

    def is_backing_off(self, now: int) -> bool:
        """Return whether the letter waits for its next attempt."""
        return self.state == "waiting" and self.claims > 0 and not self.owner and self.due_at > now

    def queue_position(self) -> tuple[int, int]:
        return self.position, self.number


@dataclass(frozen=True)
class LetterClaim:
    letter: Letter
    count: int
    """The number of the claim among those of its letter, from 1."""


@dataclass
class MailModel:
    entries: list[ModelLetter] = field(default_factory=list)

    def get(self, id: str) -> ModelLetter:
        (match,) = [entry for entry in self.entries if entry.id == id]
        return match

    def put(self, now: int, mailbox: str, body: Any, **more: Any) -> ModelLetter:
        due = more.pop("due_at", None) or now
        entry = ModelLetter(
            len(self.entries) + 1,
            mailbox,
            body,
            more.pop("priority", 0),
            due,
            due,
            more.pop("expires_at", None),
            more.pop("sender", None),
            more.pop("key", None),
        )
        self.entries.append(entry)
        return entry

    def choose(self, now: int, mailbox: str, owner: str, limit: int) -> list[ModelLetter]:
        """Return what a claim returns: due letters of the highest due priority, in queue order."""
        box = [entry for entry in self.entries if entry.mailbox == mailbox]
        due = [entry for entry in box if entry.state == "waiting" and entry.due_at <= now]
        if not due:
            return []
        top = max(entry.priority for entry in due)
        candidates = sorted(
            (entry for entry in due if entry.priority == top), key=ModelLetter.queue_position
        )
        if mailbox.startswith("queue:"):
            return sorted(candidates[:limit], key=lambda entry: entry.number)
        if any(entry.is_claimed(now) and entry.owner != owner for entry in box):
            return []
        paused = [
            entry.queue_position()
            for entry in box
            if entry.is_backing_off(now) and entry.priority >= top
        ]
        first_blocked = min(paused, default=None)
        return [
            entry
            for entry in candidates
            if first_blocked is None or first_blocked >= entry.queue_position()
        ][:limit]

    def claim(self, now: int, mailbox: str, owner: str, limit: int) -> list[ModelLetter]:
        """Claim letters; expired and poison letters are ended."""
        while chosen := self.choose(now, mailbox, owner, limit):
            for entry in chosen:
                entry.owner, entry.due_at, entry.valid = owner, now + LEASE, True
                entry.claims += 1
                entry.attempts += 1
                if mailbox.startswith("queue:"):
                    entry.position = entry.due_at
            claimed = []
            for entry in chosen:
                if entry.expires_at is not None and entry.expires_at <= now:
                    self.end(now, entry, "expired")
                elif entry.attempts > MAX_ATTEMPTS:
                    self.end(now, entry, "dead")
                else:
                    claimed.append(entry)
            if claimed:
                return claimed
        return []

    def done(self, now: int, id: str) -> ModelLetter:
        """Mark a letter as acknowledged, which ends its lease."""
        entry = self.get(id)
        if entry.state != "done":
            entry.state, entry.due_at = "done", now
        return entry

    def end(self, now: int, entry: ModelLetter, state: str) -> None:
        """End a letter that is not delivered, and notify its sender."""
        entry.state = state
        if entry.sender:
            self.put(now, entry.sender, {"undelivered": entry.id})


class MailMachine(StoreMachine):
    letters = Bundle("letters")
    claims = Bundle("claims")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.model = MailModel()

    @initialize(target=letters)
    def begin(self) -> Any:
        """Lower the attempt limit, and put a letter into each mailbox."""
        self.store.settings.set("mail.max_attempts", MAX_ATTEMPTS)
        self.store.settings.set("mail.backoff_ms", DELAYS)
        return multiple(
            *(
                self.put_one(mailbox, priority=priority)
                for mailbox in (QUEUE, ORDERED)
                for priority in (0, 0, 5)
            )
        )

    # -- put ------------------------------------------------------------------------------------

    @rule(
        target=letters,
        mailbox=st.sampled_from([QUEUE, ORDERED]),
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        priority=st.sampled_from([0, 0, 0, 5]),
        delay=st.sampled_from([0, 0, 0, 10 * SECOND]),
        lifetime=st.sampled_from([None, None, 40 * SECOND]),
        sender=st.sampled_from([None, ORDERED]),
    )
    def put(
        self,
        mailbox: str,
        key: str | None,
        priority: int,
        delay: int,
        lifetime: int | None,
        sender: str | None,
    ) -> str:
        due = self.now + delay
        expires = due + lifetime if lifetime else None
        return self.put_one(
            mailbox, key=key, priority=priority, due_at=due, expires_at=expires, sender=sender
        )

    def put_one(self, mailbox: str, **details: Any) -> str:
        body = len(self.model.entries)
        letter = self.store.mail.put(mailbox, body, **details)
        key = details.get("key")
        with_key = [entry for entry in self.model.entries if key and entry.key == key]
        same = [entry for entry in with_key if entry.mailbox == mailbox]
        if same:
            assert (letter.id, letter.body) == (same[0].id, same[0].body)
        else:
            self.model.put(self.now, mailbox, body, **details).id = letter.id
        return letter.id

    # -- claims ---------------------------------------------------------------------------------

    @rule(
        target=claims,
        mailbox=st.sampled_from([QUEUE, ORDERED]),
        owner=st.sampled_from(["ann", "bob"]),
        limit=st.integers(1, 3),
    )
    def claim(self, mailbox: str, owner: str, limit: int) -> Any:
        letters = self.store.mail.claim(mailbox, owner=owner, limit=limit, lease_ms=LEASE)
        return self.compare_claim(letters, self.model.claim(self.now, mailbox, owner, limit))

    def compare_claim(self, letters: list[Letter], entries: list[ModelLetter]) -> Any:
        assert len(letters) == len(entries)
        for letter, entry in zip(letters, entries, strict=True):
            entry.id = entry.id or letter.id  # a notice that this claim caused has no id yet
            assert letter.id == entry.id
        return multiple(
            *(
                LetterClaim(letter, entry.claims)
                for letter, entry in zip(letters, entries, strict=True)
            )
        )

    # Few rules, so that a sequence uses the same letters repeatedly.
    @rule(claim=claims, how=st.sampled_from(["ack", "fail", "renew", "begin_delivery", "refuse"]))
    def answer(self, claim: LetterClaim, how: str) -> None:
        getattr(self, how)(claim)

    def claim_error(self, claim: LetterClaim, *states: str) -> type[CorralError] | None:
        """Return the error that an operation with this claim raises, if any."""
        entry = self.model.get(claim.letter.id)
        if not entry.valid or entry.claims != claim.count:
            return Held
        return None if entry.state in states else IllegalMove

    def ack(self, claim: LetterClaim) -> None:
        def call() -> Letter:
            return self.store.mail.ack(claim.letter)

        if not self.is_rejected(self.claim_error(claim, *OPEN, "done"), call):
            assert call().state == "done"
            self.model.done(self.now, claim.letter.id)

    @rule(target=claims, claim=claims, owner=st.sampled_from(["ann", "bob"]))
    def ack_and_claim(self, claim: LetterClaim, owner: str) -> Any:
        def call() -> list[Letter]:
            return self.store.mail.ack_and_claim(claim.letter, owner=owner, lease_ms=LEASE)

        if self.is_rejected(self.claim_error(claim, *OPEN, "done"), call):
            return multiple()
        entry = self.model.done(self.now, claim.letter.id)
        return self.compare_claim(call(), self.model.claim(self.now, entry.mailbox, owner, 1))

    def fail(self, claim: LetterClaim) -> None:
        def call() -> Letter:
            return self.store.mail.fail(claim.letter, "broken")

        if self.is_rejected(self.claim_error(claim, *OPEN), call):
            return
        entry = self.model.get(claim.letter.id)
        failed = call()
        if entry.attempts >= MAX_ATTEMPTS:
            self.model.end(self.now, entry, "dead")
            return
        pause = DELAYS[min(entry.attempts, len(DELAYS)) - 1]
        assert pause <= failed.due_at - self.now <= pause * 1.1, "jitter only lengthens the delay"
        entry.state, entry.owner, entry.valid = "waiting", None, False
        entry.due_at = failed.due_at
        if entry.mailbox.startswith("queue:"):
            entry.position = failed.due_at

    def renew(self, claim: LetterClaim) -> None:
        def call() -> Letter:
            return self.store.mail.renew(claim.letter, lease_ms=2 * LEASE)

        entry = self.model.get(claim.letter.id)
        lapsed = entry.due_at <= self.now and not entry.mailbox.startswith("queue:")
        if not self.is_rejected(Held if lapsed or self.claim_error(claim, *OPEN) else None, call):
            call()
            entry.due_at = self.now + 2 * LEASE
            if entry.mailbox.startswith("queue:"):
                entry.position = entry.due_at

    def begin_delivery(self, claim: LetterClaim) -> None:
        def call() -> Letter:
            return self.store.mail.begin_delivery(claim.letter)

        if not self.is_rejected(self.claim_error(claim, "waiting"), call):
            call()
            self.model.get(claim.letter.id).state = "unconfirmed"

    def refuse(self, claim: LetterClaim) -> None:
        def call() -> Letter:
            return self.store.mail.refuse(claim.letter, "no")

        if not self.is_rejected(self.claim_error(claim, *OPEN), call):
            call()
            self.model.end(self.now, self.model.get(claim.letter.id), "refused")

    # -- by people ------------------------------------------------------------------------------

    @rule(id=letters, how=st.sampled_from(["confirm", "retry", "resend", "drop"]))
    def decide(self, id: str, how: str) -> None:
        match how:
            case "confirm" | "retry":
                self.resolve(id, delivered=how == "confirm")
            case "resend":
                self.resend(id)
            case "drop":
                self.drop(id)

    def resolve(self, id: str, *, delivered: bool) -> None:
        def call() -> Letter:
            return self.store.mail.resolve(id, delivered=delivered)

        entry = self.model.get(id)
        if self.is_rejected(None if entry.state == "unconfirmed" else IllegalMove, call):
            return
        call()
        if delivered:
            entry.state = "done"
        else:
            self.start_over(entry)

    def resend(self, id: str) -> None:
        entry = self.model.get(id)
        ended_badly = entry.state in ("dead", "refused", "expired")

        def call() -> Letter:
            return self.store.mail.resend(id)

        if not self.is_rejected(None if ended_badly else IllegalMove, call):
            call()
            self.start_over(entry)
            entry.position, entry.attempts, entry.expires_at = self.now, 0, None

    def start_over(self, entry: ModelLetter) -> None:
        entry.state, entry.owner, entry.valid, entry.due_at = "waiting", None, False, self.now
        if entry.mailbox.startswith("queue:"):
            entry.position = self.now

    def drop(self, id: str) -> None:
        entry = self.model.get(id)

        def call() -> Letter:
            return self.store.mail.drop(id)

        if not self.is_rejected(IllegalMove if entry.state in ("done", "refused") else None, call):
            call()
            entry.state = "refused"

    @rule()
    def expire_due(self) -> None:
        expired = [
            entry
            for entry in self.model.entries
            if entry.state == "waiting"
            and entry.expires_at is not None
            and entry.expires_at <= self.now
            and not entry.is_claimed(self.now)
        ]
        letters = self.store.internal.mail.expire_due()
        assert {letter.id for letter in letters} == {entry.id for entry in expired}
        for letter in letters:  # notices come in the order in which the letters were ended
            self.model.end(self.now, self.model.get(letter.id), "expired")

    @rule(ms=st.sampled_from([SECOND, 6 * SECOND, 25 * SECOND, 45 * SECOND, 5 * MINUTE]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    # -- invariants -----------------------------------------------------------------------------

    @invariant()
    def letters_match_the_model(self) -> None:
        letters = self.store.mail.list(all=True, limit=1_000).items[::-1]
        entries = self.model.entries
        assert len(letters) == len(entries)
        for letter, entry in zip(letters, entries, strict=True):
            if not entry.id:  # a notice that was not seen yet
                assert letter.body["undelivered"] == entry.body["undelivered"]
                entry.id = letter.id
        assert [
            (item.id, item.mailbox, item.state, item.due_at, item.attempts, item.owner)
            for item in letters
        ] == [
            (item.id, item.mailbox, item.state, item.due_at, item.attempts, item.owner)
            for item in entries
        ]

    @invariant()
    def next_due_is_never_too_late(self) -> None:
        for mailbox in (QUEUE, ORDERED):
            next_due = self.store.mail.next_due(mailbox)
            if self.model.choose(self.now, mailbox, "new owner", 1):
                assert next_due is not None
                assert next_due <= self.now


@allow_shrinking_time
def test_mail_matches_the_model(fresh_url: FreshUrl) -> None:
    run_machine(MailMachine, fresh_url, examples=50, steps=40)
