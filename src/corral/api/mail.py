"""Operations of `store.mail`."""

from collections.abc import Sequence
from typing import Any, Literal

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.domain.mail import ops, queries
from corral.domain.mail.model import HopLimitReached, Letter, LetterChain
from corral.kernel.errors import Invalid, Refused
from corral.kernel.pagination import Page
from corral.services import mail


def _refuse_beyond_limit(result: Letter | HopLimitReached) -> Letter:
    """Return the letter; raises Refused if it was not put. The notices of that were committed."""
    if isinstance(result, HopLimitReached):
        raise Refused(result.message, reason="hop_limit")
    return result


class Mail(Resource):
    """The message queue: letters wait in mailboxes until a consumer acknowledges them.

    Delivery is at least once: a claim is a lease, and a letter whose lease expires is claimed
    again. Mailboxes keep order and have one consumer at a time, except `queue:…` mailboxes, which
    are plain work queues. Each claim has a fencing token; a late acknowledgement raises Held.
    """

    noun = "mail"
    subjects = ("letter", "id")
    are_in_projects = False  # an agent has the same mailbox in all projects

    put = write(
        ops.put_by_caller,
        mode="one",
        repeatable_by="key",
        after_commit=_refuse_beyond_limit,
        actor=("sender",),
        agent=rules.as_sender,
    )
    renew = write(
        ops.renew, mode="one", repeatable=True, in_run="change_mailbox", agent=rules.only_own_letter
    )
    ack = write(
        ops.ack, mode="one", repeatable=True, in_run="change_mailbox", agent=rules.only_own_letter
    )
    fail = write(ops.fail, in_run="change_mailbox", agent=rules.only_own_letter)
    refuse = write(ops.refuse, in_run="change_mailbox", agent=rules.only_own_letter)
    begin_delivery = write(
        ops.begin_delivery,
        mode="one",
        durable=True,
        in_run="change_mailbox",
        agent=rules.only_own_letter,
    )
    resolve = write(ops.resolve, durable=True, in_run="change_mailbox")
    resend = write(ops.resend, in_run="change_mailbox")
    drop = write(ops.drop, in_run="change_mailbox")
    get = read(ops.get, mode="one", agent=rules.only_own_letter)
    dead = read(queries.list_dead, mode="one")
    get_all = read(queries.get_many, mode="one")
    next_due = read(queries.next_due, mode="one", agent=rules.only_own_mailbox)

    _waiting = read(queries.list_waiting, mode="one")
    _all = read(queries.list_all, mode="one")
    _by_state = read(queries.list_by_state, mode="one")

    @operation(waits="wait_ms", in_run="change_mailbox", agent=rules.as_claimant)
    def claim(
        self,
        mailbox: str,
        *,
        owner: str,
        limit: int = 1,
        lease_ms: int = ops.LEASE_MS,
        wait_ms: int = 0,
    ) -> Sequence[Letter]:
        """Claim up to `limit` letters: highest priority first, then oldest due.

        The letters stay in the mailbox under a lease; `ack`, `fail` or `refuse` each of them before
        it expires, or `renew` the lease. An ordered mailbox gives no letter to another owner while
        one is claimed. Letters that expired, or failed too often, are not returned. When there is
        none, waits up to `wait_ms` for one.
        """
        return mail.claim(
            self._database, mailbox, owner=owner, limit=limit, lease_ms=lease_ms, wait_ms=wait_ms
        )

    @operation(in_run="change_mailbox", agent=rules.as_claimant)
    def ack_and_claim(
        self,
        letter: Letter | str,
        *,
        owner: str,
        fence: int | None = None,
        limit: int = 1,
        lease_ms: int = ops.LEASE_MS,
    ) -> Sequence[Letter]:
        """Acknowledge a letter and claim the next ones of its mailbox, in one transaction.

        Raises Held when the claim on the letter has passed to another owner.
        """
        return mail.ack_and_claim(
            self._database, letter, owner=owner, fence=fence, limit=limit, lease_ms=lease_ms
        )

    @operation(reads=True)
    def list(
        self,
        *,
        mailbox: str | None = None,
        state: Literal["unconfirmed", "dead", "refused", "expired"] | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Letter]:
        """List letters that are not delivered yet, by mailbox, in queue order.

        With `state`, lists letters that need attention; with `all`, every letter; both newest
        first. Raises Invalid when `state` is given with `mailbox` or with `all`.
        """
        if state is not None:
            if mailbox is not None:
                raise Invalid("Give a mailbox or a state, not both.")
            if all:
                raise Invalid("Give a state or `all`, not both.")
            return self._by_state(state=state, after=after, limit=limit)
        pages = self._all if all else self._waiting
        return pages(mailbox=mailbox, after=after, limit=limit)

    @operation(
        actor=("agent",),
        agent=rules.as_requester,
        objects={"run": "runs", "session": "sessions"},
    )
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
        """Send a letter from an agent to another agent or a person, or reply to a letter.

        A reply (`reply_to`) goes to the address that its sender waits at. With `wake`, the
        receiving agent is started. Raises Refused when the chain of letters exceeds
        `mail.max_hops`; both agents are notified.
        """
        from corral.domain.chat.conversations import agent_mail

        result = self._database.write(
            lambda tx: agent_mail.send(
                tx,
                agent,
                body,
                to=to,
                reply_to=reply_to,
                wake=wake,
                run=self._database.run_id or run,
                session=session,
                priority=priority,
                key=key,
                project=project,
            )
        )
        return _refuse_beyond_limit(result)

    @operation(agent=rules.only_own_letters, objects={"run": "runs"})
    def read_by(self, letters: Sequence[str], *, run: str) -> Sequence[LetterChain]:
        """Record that a run has read letters; returns the chains of those from agents."""
        from corral.domain.chat.conversations import agent_mail

        return self._database.write(lambda tx: agent_mail.mark_read(tx, [*letters], run))
