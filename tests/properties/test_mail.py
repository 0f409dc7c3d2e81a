"""Mail compared with a model: which owner may claim which letter, and how letters end."""

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
    run_machine,
    while_it_is_made_short,
)

QUEUE, ORDERED = "queue:work", "agent:ada"
MAX_ATTEMPTS = 2
DELAYS = [5 * SECOND, 20 * SECOND]
LEASE = 30 * SECOND
OPEN = ("waiting", "unconfirmed")


@dataclass
class Paper:
    """A letter of the model."""

    number: int
    """The order in which they were put. Ids have the same order, and on PostgreSQL gaps."""

    mailbox: str
    body: Any
    priority: int
    due_at: int
    place: int
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
        """Whether the letter is in back-off."""
        return self.state == "waiting" and self.claims > 0 and not self.owner and self.due_at > now

    def queue_position(self) -> tuple[int, int]:
        return self.place, self.number


@dataclass(frozen=True)
class Claim:
    letter: Letter
    count: int
    """Which claim of its letter it is, from 1."""


@dataclass
class Model:
    papers: list[Paper] = field(default_factory=list)

    def paper(self, id: str) -> Paper:
        (match,) = [paper for paper in self.papers if paper.id == id]
        return match

    def put(self, now: int, mailbox: str, body: Any, **more: Any) -> Paper:
        due = more.pop("due_at", None) or now
        paper = Paper(
            len(self.papers) + 1,
            mailbox,
            body,
            more.pop("priority", 0),
            due,
            due,
            more.pop("expires_at", None),
            more.pop("sender", None),
            more.pop("key", None),
        )
        self.papers.append(paper)
        return paper

    def choose(self, now: int, mailbox: str, owner: str, limit: int) -> list[Paper]:
        """Return what a claim returns: due letters of the highest due priority, in queue order."""
        box = [paper for paper in self.papers if paper.mailbox == mailbox]
        due = [paper for paper in box if paper.state == "waiting" and paper.due_at <= now]
        if not due:
            return []
        top = max(paper.priority for paper in due)
        candidates = sorted(
            (paper for paper in due if paper.priority == top), key=Paper.queue_position
        )
        if mailbox.startswith("queue:"):
            return sorted(candidates[:limit], key=lambda paper: paper.number)
        if any(paper.is_claimed(now) and paper.owner != owner for paper in box):
            return []
        paused = [
            paper.queue_position()
            for paper in box
            if paper.is_backing_off(now) and paper.priority >= top
        ]
        first_blocked = min(paused, default=None)
        return [
            paper
            for paper in candidates
            if first_blocked is None or first_blocked >= paper.queue_position()
        ][:limit]

    def claim(self, now: int, mailbox: str, owner: str, limit: int) -> list[Paper]:
        """Claim letters; expired and poison letters are ended."""
        while chosen := self.choose(now, mailbox, owner, limit):
            for paper in chosen:
                paper.owner, paper.due_at, paper.valid = owner, now + LEASE, True
                paper.claims += 1
                paper.attempts += 1
                if mailbox.startswith("queue:"):
                    paper.place = paper.due_at
            good = []
            for paper in chosen:
                if paper.expires_at is not None and paper.expires_at <= now:
                    self.end(now, paper, "expired")
                elif paper.attempts > MAX_ATTEMPTS:
                    self.end(now, paper, "dead")
                else:
                    good.append(paper)
            if good:
                return good
        return []

    def done(self, now: int, id: str) -> Paper:
        """Mark a letter as acknowledged, which ends its lease."""
        paper = self.paper(id)
        if paper.state != "done":
            paper.state, paper.due_at = "done", now
        return paper

    def end(self, now: int, paper: Paper, state: str) -> None:
        """End a letter that is not delivered, and notify its sender."""
        paper.state = state
        if paper.sender:
            self.put(now, paper.sender, {"undelivered": paper.id})


class MailMachine(StoreMachine):
    letters = Bundle("letters")
    claims = Bundle("claims")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.model = Model()

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
        body = len(self.model.papers)
        letter = self.store.mail.put(mailbox, body, **details)
        key = details.get("key")
        known = [paper for paper in self.model.papers if key and paper.key == key]
        same = [paper for paper in known if paper.mailbox == mailbox]
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

    def compare_claim(self, letters: list[Letter], papers: list[Paper]) -> Any:
        assert len(letters) == len(papers)
        for letter, paper in zip(letters, papers, strict=True):
            paper.id = paper.id or letter.id  # a notice that this claim caused has no id yet
            assert letter.id == paper.id
        return multiple(
            *(Claim(letter, paper.claims) for letter, paper in zip(letters, papers, strict=True))
        )

    # Few rules, so that a sequence uses the same letters repeatedly.
    @rule(claim=claims, how=st.sampled_from(["ack", "fail", "renew", "begin_delivery", "refuse"]))
    def answer(self, claim: Claim, how: str) -> None:
        getattr(self, how)(claim)

    def refusal(self, claim: Claim, *states: str) -> type[CorralError] | None:
        """Return the error that an operation with this claim raises, if any."""
        paper = self.model.paper(claim.letter.id)
        if not paper.valid or paper.claims != claim.count:
            return Held
        return None if paper.state in states else IllegalMove

    def ack(self, claim: Claim) -> None:
        def call() -> Letter:
            return self.store.mail.ack(claim.letter)

        if not self.refused(self.refusal(claim, *OPEN, "done"), call):
            assert call().state == "done"
            self.model.done(self.now, claim.letter.id)

    @rule(target=claims, claim=claims, owner=st.sampled_from(["ann", "bob"]))
    def ack_and_claim(self, claim: Claim, owner: str) -> Any:
        def call() -> list[Letter]:
            return self.store.mail.ack_and_claim(claim.letter, owner=owner, lease_ms=LEASE)

        if self.refused(self.refusal(claim, *OPEN, "done"), call):
            return multiple()
        paper = self.model.done(self.now, claim.letter.id)
        return self.compare_claim(call(), self.model.claim(self.now, paper.mailbox, owner, 1))

    def fail(self, claim: Claim) -> None:
        def call() -> Letter:
            return self.store.mail.fail(claim.letter, "broken")

        if self.refused(self.refusal(claim, *OPEN), call):
            return
        paper = self.model.paper(claim.letter.id)
        failed = call()
        if paper.attempts >= MAX_ATTEMPTS:
            self.model.end(self.now, paper, "dead")
            return
        pause = DELAYS[min(paper.attempts, len(DELAYS)) - 1]
        assert pause <= failed.due_at - self.now <= pause * 1.1, "jitter only lengthens the delay"
        paper.state, paper.owner, paper.valid = "waiting", None, False
        paper.due_at = failed.due_at
        if paper.mailbox.startswith("queue:"):
            paper.place = failed.due_at

    def renew(self, claim: Claim) -> None:
        def call() -> Letter:
            return self.store.mail.renew(claim.letter, lease_ms=2 * LEASE)

        paper = self.model.paper(claim.letter.id)
        lapsed = paper.due_at <= self.now and not paper.mailbox.startswith("queue:")
        if not self.refused(Held if lapsed or self.refusal(claim, *OPEN) else None, call):
            call()
            paper.due_at = self.now + 2 * LEASE
            if paper.mailbox.startswith("queue:"):
                paper.place = paper.due_at

    def begin_delivery(self, claim: Claim) -> None:
        def call() -> Letter:
            return self.store.mail.begin_delivery(claim.letter)

        if not self.refused(self.refusal(claim, "waiting"), call):
            call()
            self.model.paper(claim.letter.id).state = "unconfirmed"

    def refuse(self, claim: Claim) -> None:
        def call() -> Letter:
            return self.store.mail.refuse(claim.letter, "no")

        if not self.refused(self.refusal(claim, *OPEN), call):
            call()
            self.model.end(self.now, self.model.paper(claim.letter.id), "refused")

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

        paper = self.model.paper(id)
        if self.refused(None if paper.state == "unconfirmed" else IllegalMove, call):
            return
        call()
        if delivered:
            paper.state = "done"
        else:
            self.start_over(paper)

    def resend(self, id: str) -> None:
        paper = self.model.paper(id)
        ended_badly = paper.state in ("dead", "refused", "expired")

        def call() -> Letter:
            return self.store.mail.resend(id)

        if not self.refused(None if ended_badly else IllegalMove, call):
            call()
            self.start_over(paper)
            paper.place, paper.attempts, paper.expires_at = self.now, 0, None

    def start_over(self, paper: Paper) -> None:
        paper.state, paper.owner, paper.valid, paper.due_at = "waiting", None, False, self.now
        if paper.mailbox.startswith("queue:"):
            paper.place = self.now

    def drop(self, id: str) -> None:
        paper = self.model.paper(id)

        def call() -> Letter:
            return self.store.mail.drop(id)

        if not self.refused(IllegalMove if paper.state in ("done", "refused") else None, call):
            call()
            paper.state = "refused"

    @rule()
    def expire_due(self) -> None:
        late = [
            paper
            for paper in self.model.papers
            if paper.state == "waiting"
            and paper.expires_at is not None
            and paper.expires_at <= self.now
            and not paper.is_claimed(self.now)
        ]
        letters = self.store.internal.mail.expire_due()
        assert {letter.id for letter in letters} == {paper.id for paper in late}
        for letter in letters:  # notices come in the order in which the letters were ended
            self.model.end(self.now, self.model.paper(letter.id), "expired")

    @rule(ms=st.sampled_from([SECOND, 6 * SECOND, 25 * SECOND, 45 * SECOND, 5 * MINUTE]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    # -- always ---------------------------------------------------------------------------------

    @invariant()
    def letters_match_the_model(self) -> None:
        letters = self.store.mail.list(all=True, limit=1_000).items[::-1]
        papers = self.model.papers
        assert len(letters) == len(papers)
        for letter, paper in zip(letters, papers, strict=True):
            if not paper.id:  # a notice that was not seen yet
                assert letter.body["undelivered"] == paper.body["undelivered"]
                paper.id = letter.id
        assert [
            (one.id, one.mailbox, one.state, one.due_at, one.attempts, one.owner) for one in letters
        ] == [
            (one.id, one.mailbox, one.state, one.due_at, one.attempts, one.owner) for one in papers
        ]

    @invariant()
    def next_due_is_never_too_late(self) -> None:
        for mailbox in (QUEUE, ORDERED):
            next_due = self.store.mail.next_due(mailbox)
            if self.model.choose(self.now, mailbox, "somebody new", 1):
                assert next_due is not None
                assert next_due <= self.now


@while_it_is_made_short
def test_mail_matches_the_model(fresh_url: FreshUrl) -> None:
    run_machine(MailMachine, fresh_url, stories=50, steps=40)
