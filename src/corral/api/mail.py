import time
from collections.abc import Sequence
from typing import Any, Literal

from corral.api.operation import Room, read, write
from corral.api.wait import SOON
from corral.domain.mail import ops, queries
from corral.domain.mail.model import Exchange, Letter, keeps_order
from corral.kernel.errors import Invalid, Refused
from corral.kernel.pagination import Page

Letters = list[Letter]
Exchanges = list[Exchange]

# Behind a wake-up that never came: how long a waiting claim sleeps at the most.
LONGEST_SLEEP = 1.0
SHORTEST_SLEEP = 0.001
MAX_WAIT_MS = 24 * 3_600_000


class Mail(Room):
    """The one queue of the system."""

    noun = "mail"

    put = write(ops.put, mode="one", repeatable_by="key")
    renew = write(ops.renew, mode="one", repeatable=True)
    ack = write(ops.ack, mode="one", repeatable=True)
    fail = write(ops.fail)
    refuse = write(ops.refuse)
    doubt = write(ops.doubt, mode="one", durable=True)
    settle = write(ops.settle, durable=True)
    resend = write(ops.resend)
    drop = write(ops.drop)
    expire_due = write(ops.expire_due, repeatable=True)
    get = read(ops.get, mode="one")
    dead = read(queries.dead, mode="one")
    get_all = read(queries.get_all, mode="one")
    next_due = read(queries.next_due, mode="one")

    # A claim whose answer was lost is not repeated where order matters: the same owner would get
    # the second letter while it has, without knowing it, the first.
    _take_in_order = write(ops.claim, mode="one")
    _take = write(ops.claim, mode="one", repeatable=True)
    _ack_and_take = write(ops.ack_and_claim)
    _retire = write(ops.retire)
    _waiting = read(queries.list_waiting, mode="one")
    _all = read(queries.list_all, mode="one")
    _by_state = read(queries.list_by_state, mode="one")
    _stalled = read(queries.list_stalled, mode="one")

    def claim(
        self,
        mailbox: str,
        *,
        owner: str,
        limit: int = 1,
        lease_ms: int = ops.LEASE_MS,
        wait_ms: int = 0,
    ) -> Letters:
        """Take out up to `limit` letters: highest priority first, then oldest due.

        In order, and none to another owner while one is out; `queue:…` mailboxes are plain work
        queues. With `wait_ms` it waits for a letter when there is none.
        """
        if wait_ms > 0:
            return self._claim_waiting(mailbox, owner, limit, lease_ms, min(wait_ms, MAX_WAIT_MS))
        take = self._take_in_order if keeps_order(mailbox) else self._take
        while True:
            taken = take(mailbox, owner=owner, limit=limit, lease_ms=lease_ms)
            good = self._still_good(taken)
            if good or not taken:
                return good

    def ack_and_claim(
        self,
        letter: Letter | str,
        *,
        owner: str,
        fence: int | None = None,
        limit: int = 1,
        lease_ms: int = ops.LEASE_MS,
    ) -> Letters:
        """Acknowledge one letter and take the next of the same mailbox, in one transaction."""
        taken = self._ack_and_take(letter, owner=owner, fence=fence, limit=limit, lease_ms=lease_ms)
        good = self._still_good(taken)
        if taken and not good:
            return self.claim(taken[0].mailbox, owner=owner, limit=limit, lease_ms=lease_ms)
        return good

    def list(
        self,
        *,
        mailbox: str | None = None,
        state: Literal["unknown", "dead", "refused", "expired"] | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Letter]:
        """Letters on their way, by mailbox, in the order of the line; or those in a state that
        somebody may have to look at, or all, both newest first."""
        if state is not None:
            if mailbox is not None:
                raise Invalid("Give a mailbox or a state, not both.")
            return self._by_state(state=state, after=after, limit=limit)
        pages = self._all if all else self._waiting
        return pages(mailbox=mailbox, after=after, limit=limit)

    def write(
        self,
        agent: str,
        body: Any,
        *,
        to: str | None = None,
        reply_to: str | None = None,
        wake: bool = False,
        run: str | None = None,
        session: str | None = None,
        priority: int = 0,
        key: str | None = None,
        project: str | None = None,
    ) -> Letter:
        """An agent writes to another agent or a person, or answers a letter (`reply_to`), which
        goes to where its writer waits for it; with `wake` the agent is started for it.

        Beyond `mail.max_hops` letters that led to one another it is Refused, and both are told.
        """
        from corral.domain.chat.conversations import agent_mail

        said = self._database.write(
            lambda tx: agent_mail.write(
                tx,
                agent,
                body,
                to=to,
                reply_to=reply_to,
                wake=wake,
                run=self._database.origin or run,
                session=session,
                priority=priority,
                key=key,
                project=project,
            )
        )
        if isinstance(said, str):  # what the other side is told of it is kept
            raise Refused(said, reason="hop_limit")
        return said

    def read_by(self, letters: Sequence[str], *, run: str) -> Exchanges:
        """A run has read letters; gives what those of agents belong to."""
        from corral.domain.chat.conversations import agent_mail as conversations_agent_mail

        return self._database.write(lambda tx: conversations_agent_mail.read(tx, [*letters], run))

    def _still_good(self, taken: Letters) -> Letters:
        # A look at the letters themselves tells that almost none needs a second transaction.
        for letter in taken:
            if letter.attempts > 1 or letter.expires_at is not None:
                return self._retire(taken)
        return taken

    def _claim_waiting(
        self, mailbox: str, owner: str, limit: int, lease_ms: int, wait_ms: int
    ) -> Letters:
        deadline = time.monotonic() + wait_ms / 1_000
        pause = SHORTEST_SLEEP
        with self._database.listening() as listener:
            while True:
                letters = self.claim(mailbox, owner=owner, limit=limit, lease_ms=lease_ms)
                left = deadline - time.monotonic()
                if letters or left <= 0:
                    return letters
                due = self.next_due(mailbox)
                until = LONGEST_SLEEP if due is None else (due - self._database.clock.now()) / 1_000
                # One that is due and was not given out became due this moment, or stands behind a
                # letter that is out: look again soon, then more and more seldom.
                pause = min(pause * 2, LONGEST_SLEEP) if until <= 0 else max(until, SOON)
                if listener.wait(min(pause, left, LONGEST_SLEEP)):
                    pause = SHORTEST_SLEEP


class AgentMail(Mail):
    """The queue for a process inside a run, or for an agent.

    A class of its own: the check of `put` costs all other callers nothing.
    """

    def put(self, mailbox: str, body: Any, **options: Any) -> Letter:
        """Put a letter. One that an agent may read continues the chain of letters that led to it;
        raises Refused beyond `mail.max_hops`.

        A key counts among the keys of this agent alone, except in a `queue:`. Corral's own letters
        have keys that can be guessed (`msg_7`), and a key that was seen would suppress them.
        """
        from corral.domain.chat.conversations import agent_mail as conversations_agent_mail

        if options.get("key") and not mailbox.startswith("queue:"):
            options["key"] = f"{self._database.actor}:{options['key']}"
        if not mailbox.startswith(("agent:", "session:")):
            return self._database.write(lambda tx: ops.put(tx, mailbox, body, **options))
        run = self._database.origin
        result = self._database.write(
            lambda tx: conversations_agent_mail.put(tx, mailbox, body, run=run, **options)
        )
        if isinstance(result, str):  # the transaction is kept: it notified the other side
            raise Refused(result)
        return result
