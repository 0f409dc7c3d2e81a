"""Putting letters, claiming them, and saying how it went."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_transitions import create_many, encode_rows, move_many
from corral.db.transitions import create, create_each, move
from corral.db.tx import Tx
from corral.domain.mail import chains, sql
from corral.domain.mail.backoff import pause_ms as ladder_pause
from corral.domain.mail.model import (
    Chain,
    Draft,
    Letter,
    LetterState,
    agent_of,
    check_mailbox,
    check_priority,
    keeps_order,
)
from corral.domain.settings import ops as settings
from corral.kernel.clock import YEAR
from corral.kernel.errors import CorralError, Held, IllegalMove, Invalid
from corral.kernel.ids import number_of
from corral.kernel.lease import lease_end, taken_over
from corral.kernel.pagination import check_limit
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

KEPT = sql.KEPT
LEASE_MS = 30_000
MAX_ERROR = 8_192
MOST_BEHIND_MS = 10_000
MOST_SUCCESSORS = 100
"""How many sessions in a row may have replaced one another."""
_UNLESS_KEYED = "(mailbox, key) WHERE key IS NOT NULL"


def put(
    tx: Tx,
    mailbox: str,
    body: Any,
    *,
    key: str | None = None,
    due_at: int | None = None,
    priority: int = 0,
    sender: str | None = None,
    expires_at: int | None = None,
    project: str | None = None,
) -> Letter:
    """Put a letter into a mailbox. A key that the mailbox has seen gives back that first letter.

    It is claimed from `due_at` on and not delivered after `expires_at`. `sender` is the mailbox
    that is told should the letter never arrive. A letter that a run or an agent puts for an agent
    continues a chain (see `chains`); beyond `mail.max_hops` a session gets a notice instead. A
    session must be open; a letter to one that was replaced goes to its successor.
    """
    if check_mailbox(mailbox).startswith("session:"):
        mailbox = open_mailbox(tx, mailbox)
    values = _values(tx, body, key, due_at, priority, sender, expires_at, project)
    values["mailbox"] = mailbox
    if (tx.origin is not None or tx.actor.startswith("agent:")) and chains.is_counted(mailbox):
        tx.several()
        cause = chains.of_caller(tx)
        if cause is not None:
            return _put_counted(tx, values, cause, is_limited=mailbox.startswith("session:"))
    return _put(tx, values)


def put_after(tx: Tx, cause: Chain | None, mailbox: str, body: Any, **options: Any) -> Letter:
    """Put a letter that continues a chain, or that of the caller where it is longer. The options
    are those of `put`. Beyond `mail.max_hops` the mailbox gets a notice, which wakes no agent. A
    letter to a session that takes no letters is refused, and its sender notified."""
    values = {**_values(tx, body, **options), "mailbox": check_mailbox(mailbox)}
    if not chains.is_counted(mailbox):
        return _put(tx, values)
    try:
        values["mailbox"] = open_mailbox(tx, mailbox)
    except CorralError as error:
        letter = _put(tx, values)
        return letter if letter.ended_at else _end(tx, "refuse", _number(letter), error.message)
    cause = chains.longest(cause, chains.of_caller(tx))
    if cause is None:
        return _put(tx, values)
    return _put_counted(tx, values, cause, is_limited=True)


def open_mailbox(tx: Tx, mailbox: str) -> str:
    """Return the mailbox that takes letters for this address: for a session that was closed and
    replaced, that of its successor. Raises NotFound for a session that does not exist, and
    IllegalMove for one that is closed. Other mailboxes need no row to exist."""
    kind, _, name = mailbox.partition(":")
    if kind != "session":
        return mailbox
    tx.several()
    try:
        id = first = sql.SESSION_IDS.resolve(tx, name)
    except Invalid:
        raise sql.SESSION_IDS.missing(name) from None
    for _ in range(MOST_SUCCESSORS):
        rows = tx.run(sql.SESSION, id=id)
        if not rows:
            raise sql.SESSION_IDS.missing(id)
        ((state, successor),) = rows
        if state == "open":
            return f"session:{id}"
        if successor is None:
            break
        id = successor
    raise IllegalMove(
        f"{first} is closed and takes no letters; `corral session reopen {first}` opens it.",
        id=first,
        found="closed",
        allowed=["reopen"],
    )


def put_in_chain(
    tx: Tx,
    cause: Chain,
    mailbox: str,
    body: Any,
    *,
    answers: str | None,
    reply_to: str,
    **options: Any,
) -> Letter:
    """Put a letter that continues a chain and may be answered at `reply_to`; the caller checks the
    limit. The options are those of `put`."""
    values = {**_values(tx, body, **options), "mailbox": check_mailbox(mailbox)}
    letter = _put(tx, values)
    chains.record(tx, letter.id, cause, answers=answers, reply_to=reply_to)
    return letter


def _put_counted(tx: Tx, values: dict[str, Any], cause: Chain, *, is_limited: bool) -> Letter:
    most = chains.limit_of(tx, cause) if is_limited else None
    if most is not None:
        return cut_off(tx, cause, values["mailbox"], values.get("sender") or tx.actor, most)
    letter = _put(tx, values)
    chains.record(tx, letter.id, cause)
    return letter


def cut_off(tx: Tx, chain: Chain, mailbox: str, sender: str, most: int) -> Letter:
    """Notify a mailbox that a chain exceeded the hop limit, once; the notice wakes no agent."""
    reason = f"{sender} wanted to write once more: {chains.too_long(most)}"
    body = {"kind": "notice", "undelivered": chain.correlation_id, "reason": reason}
    told = {"to": mailbox, "correlation": chain.correlation_id}
    tx.note("agent", "cut_off", sender, data=told)
    key = f"cut_off:{chain.correlation_id}"
    return _put(tx, {**_values(tx, body, key), "mailbox": mailbox})


def _put(tx: Tx, values: dict[str, Any]) -> Letter:
    mailbox, key = values["mailbox"], values.get("key")
    letter = create(tx, sql.LETTERS, values) if key is None else None
    while letter is None:
        # Found neither free nor taken: the first one was forgotten (pruned) in between.
        letter = create(tx, sql.LETTERS, dict(values), unless=_UNLESS_KEYED) or tx.one(
            sql.BY_KEY, mailbox=mailbox, key=key
        )
    return letter


def put_each(tx: Tx, drafts: Sequence[Draft]) -> list[str]:
    """Put several letters, in their order, at little more than the price of the statements; gives
    back their ids. A key that a mailbox has seen gives that of the first letter."""
    rows = [
        {"mailbox": check_mailbox(each.mailbox), "key": None, "sender": None}
        | _values(tx, each.body, key=each.key, sender=each.sender)
        for each in drafts
    ]
    numbers = create_each(tx, sql.LETTERS, rows, unless=_UNLESS_KEYED)
    return [
        f"let_{number}"
        if number is not None
        else put(tx, each.mailbox, each.body, key=each.key, sender=each.sender).id
        for number, each in zip(numbers, drafts, strict=True)
    ]


def put_all(
    tx: Tx,
    mailboxes: Sequence[str],
    body: Any,
    *,
    key: str,
    cause: Chain | None = None,
    **how: Any,
) -> None:
    """Put the same letter into several mailboxes of agents and people, at the price of a statement
    or two; the options are those of `put`. A mailbox that has seen the key keeps its first letter.
    The letters continue the chain `cause`, else that of the caller; the caller checks its limit."""
    values = _values(tx, body, key=key, **how)
    if rows := [{"mailbox": check_mailbox(mailbox)} for mailbox in mailboxes]:
        create_many(tx, sql.LETTERS, rows, {"mailbox": "text"}, unless=_UNLESS_KEYED, **values)
    counted = [each for each in mailboxes if chains.is_counted(each)]
    if counted and (cause := cause or chains.of_caller(tx)) is not None:
        chains.record_all(tx, counted, key, cause)


def _values(
    tx: Tx,
    body: Any,
    key: str | None = None,
    due_at: int | None = None,
    priority: int = 0,
    sender: str | None = None,
    expires_at: int | None = None,
    project: str | None = None,
) -> dict[str, Any]:
    """The columns of a new letter that say something, but for its mailbox: each costs time."""
    now = tx.now
    due = now if due_at is None else _due(due_at, now)
    values = {
        "body": encode_json(body, "The body"),
        "rank": 0 if priority == 0 else -check_priority(priority),
        "due_at": due,
        "line_at": due,
        "created_at": now,
    }
    if key:
        values["key"] = clean_text(key, "The key", most=MAX_NAME)
    if sender:
        values["sender"] = check_mailbox(sender)
    if project:
        values["project_id"] = clean_text(project, "The project", most=MAX_NAME)
    if expires_at is not None:
        values["expires_at"] = _expiry(expires_at, due, now)
    return values


def _due(due_at: int, now: int) -> int:
    if not 0 <= check_int(due_at, "The due time") <= now + YEAR:
        raise Invalid(
            "A letter may be due within a year at the latest; use a schedule for what comes later.",
            due_at=due_at,
        )
    return due_at


def _expiry(expires_at: int, due: int, now: int) -> int:
    if not max(due, now) < check_int(expires_at, "The expiry") <= due + 10 * YEAR:
        raise Invalid(
            "A letter expires after it is due, and within ten years; give another moment.",
            expires_at=expires_at,
            due_at=due,
        )
    return expires_at


def claim(
    tx: Tx, mailbox: str, *, owner: str, limit: int = 1, lease_ms: int = LEASE_MS
) -> list[Letter]:
    """Take out up to `limit` letters: highest priority first, then oldest due.

    Each answer holds letters of one priority. In a mailbox that keeps order, nothing goes to
    another owner while one of its letters is out; elsewhere the letters of one answer come in the
    order in which they were put. Taking a lease is no event.
    """
    check_mailbox(mailbox)
    clean_text(owner, "The owner", most=MAX_NAME)
    is_read = tx.origin is not None and chains.is_counted(mailbox)
    if is_read:
        tx.several()
    statement = sql.CLAIM_ONE if limit == 1 else sql.CLAIM
    if keeps_order(mailbox):
        tx.serialize(f"mailbox:{mailbox}")
        statement = sql.CLAIM_ONE_IN_ORDER if limit == 1 else sql.CLAIM_IN_ORDER
        if limit > 1:
            # A late owner may keep one of them this moment, and with it all that are behind.
            tx.run(sql.HOLD_LATE, mailbox=mailbox, now=tx.now)
    taken = tx.all(
        statement,
        mailbox=mailbox,
        owner=owner,
        limit=check_limit(limit),
        now=tx.now,
        until=lease_end(tx.now, lease_ms),
    )
    if len(taken) > 1:
        taken.sort(key=lambda letter: (letter.line_at, number_of("let", letter.id)))
    if is_read:
        chains.read_all(tx, [letter.id for letter in taken])
    return taken


def retire(tx: Tx, taken: Sequence[Letter]) -> list[Letter]:
    """Of the letters just claimed, end those that nobody may have any more; the rest comes back.

    A letter that was claimed too often without any answer kills whoever works on it, and one that
    waited past its time is of no use to anybody.
    """
    good = []
    for letter in taken:
        number = number_of("let", letter.id)
        if letter.expires_at is not None and letter.expires_at <= tx.now:
            _end(tx, "expire", number, "nobody took it in time", guard=letter.fence)
        elif letter.attempts > 1 and letter.attempts > max_attempts(tx, letter):
            _end(
                tx,
                "bury",
                number,
                letter.last_error or "its owners went silent, every time it was claimed",
                guard=letter.fence,
            )
        else:
            good.append(letter)
    return good


def renew(
    tx: Tx, letter: Letter | str, *, fence: int | None = None, lease_ms: int = LEASE_MS
) -> Letter:
    """Keep a letter that is out for another term; Held when it was taken over."""
    number, guard = _claimed(letter, fence)
    renewed = tx.one(
        sql.RENEW, seq=number, fence=guard, now=tx.now, until=lease_end(tx.now, lease_ms)
    )
    if renewed is None:
        found = sql.LETTERS.get(tx, number)
        if found.fence != guard:
            raise taken_over(found.id, yours=guard, found=found.fence, owner=found.owner)
        raise Held(
            f"{found.id} is not out with you any more; it is {found.state}. Claim again.",
            state=found.state,
        )
    return renewed


def ack(tx: Tx, letter: Letter | str, *, fence: int | None = None) -> Letter:
    """Say that a letter was dealt with. Saying it twice is fine; Held when it was taken over."""
    number, guard = _claimed(letter, fence)
    known = letter if isinstance(letter, Letter) else None
    # The lease, which may have been renewed under this fence, ends with it: nothing is read back.
    ended: dict[str, Any] = {"ended_at": tx.now, "due_at": tx.now, "line_at": tx.now}
    try:
        return move(tx, sql.LETTERS, "ack", number, guard=guard, known=known, **ended)
    except IllegalMove:
        found = sql.LETTERS.get(tx, number)
        if found.state is LetterState.DONE and found.fence == guard:
            return found
        raise


def ack_and_claim(
    tx: Tx,
    letter: Letter | str,
    *,
    owner: str,
    fence: int | None = None,
    limit: int = 1,
    lease_ms: int = LEASE_MS,
) -> list[Letter]:
    """Acknowledge one letter and take the next of the same mailbox, in one transaction."""
    done = ack(tx, letter, fence=fence)
    return claim(tx, done.mailbox, owner=owner, limit=limit, lease_ms=lease_ms)


def fail(
    tx: Tx,
    letter: Letter | str,
    error: str,
    *,
    fence: int | None = None,
    pause_ms: int | None = None,
) -> Letter:
    """Say that an attempt failed. The letter is due again after a pause, or dead at the limit.

    `pause_ms` is how long whoever refused it wants to be left alone: it is at least that.
    """
    number, guard = _claimed(letter, fence)
    found = sql.LETTERS.get(tx, number)
    reason = clean_text(error[:MAX_ERROR] or "no reason given", "The error", most=4 * MAX_ERROR)
    if found.fence == guard and found.attempts >= max_attempts(tx, found):
        return _end(tx, "bury", number, reason, guard=guard)
    ladder = _setting(tx, "mail.backoff_ms", found)
    wanted = min(max(check_int(pause_ms, "The pause"), 0), YEAR) if pause_ms else 0
    due = tx.now + max(ladder_pause(ladder, max(found.attempts, 1)), wanted)
    line_at = found.line_at if keeps_order(found.mailbox) else due
    return move(
        tx,
        sql.LETTERS,
        "fail",
        number,
        guard=guard,
        note={"error": reason},
        due_at=due,
        line_at=line_at,
        owner=None,
        fence=guard + 1,  # whoever gave it up has no say in it any more
        last_error=reason,
    )


def doubt(tx: Tx, letter: Letter | str, *, fence: int | None = None) -> Letter:
    """Say, before an act that must not be done twice, that from now on its outcome is unknown.

    `ack` or `fail` say how it went. After a crash the letter stays `unknown` and is given to nobody
    until somebody knows (`settle`).
    """
    number, guard = _claimed(letter, fence)
    return move(tx, sql.LETTERS, "doubt", number, guard=guard)


def settle(tx: Tx, id: str, *, delivered: bool, reason: str | None = None) -> Letter:
    """End the doubt about a letter: it did arrive, or it is to be tried again."""
    number = number_of("let", id)
    note = {"reason": clean_text(reason, "The reason", most=MAX_ERROR)} if reason else None
    if delivered:
        return move(tx, sql.LETTERS, "confirm", number, note=note, ended_at=tx.now)
    found = sql.LETTERS.get(tx, number)
    line_at = found.line_at if keeps_order(found.mailbox) else tx.now
    return _anew(tx, "retry", number, note=note, line_at=line_at)


def refuse(tx: Tx, letter: Letter | str, reason: str, *, fence: int | None = None) -> Letter:
    """Turn a claimed letter away for good, for a reason that its sender is told."""
    number, guard = _claimed(letter, fence)
    return _end(tx, "refuse", number, clean_text(reason, "The reason", most=MAX_ERROR), guard=guard)


def bury(tx: Tx, letter: Letter, reason: str) -> Letter:
    """Give up a letter of which nobody can say how it went; its sender is told."""
    return _end(tx, "bury", number_of("let", letter.id), reason[:MAX_ERROR], guard=letter.fence)


def resend(tx: Tx, id: str) -> Letter:
    """Give a letter that was dead, refused or expired another chance, as if it were new."""
    return _anew(
        tx,
        "resend",
        number_of("let", id),
        attempts=0,
        line_at=tx.now,
        expires_at=None,
        last_error=None,
        ended_at=None,
    )


def drop(tx: Tx, id: str, *, reason: str | None = None) -> Letter:
    """Give a letter up: it is refused, by a person's decision, and its sender is not told again."""
    said = clean_text(reason, "The reason", most=MAX_ERROR) if reason else f"dropped by {tx.actor}"
    return move(
        tx,
        sql.LETTERS,
        "drop",
        number_of("let", id),
        note={"reason": said},
        last_error=said,
        ended_at=tx.now,
    )


def drop_waiting(tx: Tx, mailbox: str, *, reason: str) -> None:
    """Give up all letters that wait in a mailbox; what somebody else ends meanwhile stays ended."""
    said = clean_text(reason, "The reason", most=MAX_ERROR)
    given = {"mailbox": check_mailbox(mailbox), "limit": 1_000}
    while found := [number for (number,) in tx.run(sql.WAITING_NUMBERS, **given)]:
        move_many(tx, sql.LETTERS, "drop", found, last_error=said, ended_at=tx.now)


def refuse_waiting(tx: Tx, mailbox: str, *, reason: str) -> None:
    """Refuse all letters that wait in a mailbox, also those for later, and notify their senders."""
    said = clean_text(reason, "The reason", most=MAX_ERROR)
    given = {"mailbox": check_mailbox(mailbox), "limit": 1_000}
    while found := [number for (number,) in tx.run(sql.WAITING_NUMBERS, **given)]:
        for number in found:
            _end(tx, "refuse", number, said)


def expire_due(tx: Tx, *, limit: int = 100) -> list[Letter]:
    """End letters whose time has passed unclaimed, and tell their senders."""
    return [
        _end(tx, "expire", number, "nobody took it in time")
        for (number,) in tx.run(sql.EXPIRED, now=tx.now, limit=check_limit(limit))
    ]


def close_unread(tx: Tx, mailbox: str, keys: Sequence[str]) -> int:
    """End letters that nobody has out: what they tell was learned in another way, or is over.
    Gives back how many there were."""
    found = tx.run(sql.UNREAD, mailbox=mailbox, keys_=encode_rows(keys), now=tx.now)
    move_many(tx, sql.LETTERS, "ack", [seq for (seq,) in found], ended_at=tx.now)
    chains.read_all(tx, [f"let_{seq}" for (seq,) in found])
    return len(found)


def get(tx: Tx, id: str) -> Letter:
    """A letter by its id."""
    return sql.LETTERS.get(tx, number_of("let", id))


def find(tx: Tx, number: int) -> Letter | None:
    """A letter by its number, if it is still kept."""
    return tx.one(sql.LETTERS.by_key, key_=number)


def hold(tx: Tx, number: int) -> Letter | None:
    """The same, and nobody else changes it before this transaction ends."""
    tx.several()
    return tx.one(sql.LETTERS.held_by_key, key_=number)


def put_last(
    tx: Tx, mailbox: str, body: Any, *, key: str | None = None, sender: str | None = None
) -> Letter:
    """Put a letter behind all that wait in a mailbox, also behind those of transactions that began
    later and came first. To be called by one transaction at a time (`Tx.serialize`)."""
    last = tx.value(sql.LAST_IN_LINE, mailbox=check_mailbox(mailbox)) or 0
    # A clock that was set back holds up nobody for long.
    due = min(max(tx.now, last), tx.now + MOST_BEHIND_MS)
    return put(tx, mailbox, body, key=key, sender=sender, due_at=due)


def _end(tx: Tx, verb: str, number: int, reason: str, *, guard: int | None = None) -> Letter:
    """End a letter that will never arrive, and tell its sender, once."""
    ended = move(
        tx,
        sql.LETTERS,
        verb,
        number,
        guard=guard,
        note={"reason": reason},
        last_error=reason,
        ended_at=tx.now,
    )
    if ended.sender is not None:
        # The notice has no sender: whatever becomes of it, nothing bounces to and fro.
        put(
            tx,
            ended.sender,
            {
                "undelivered": ended.id,
                "mailbox": ended.mailbox,
                "state": ended.state,
                "reason": reason,
                "key": ended.key,
            },
            key=f"undelivered:{ended.id}:{ended.fence}",
            project=ended.project_id,
        )
    return ended


def _number(letter: Letter) -> int:
    return number_of("let", letter.id)


def _anew(tx: Tx, verb: str, number: int, **columns: Any) -> Letter:
    """Let a letter be claimed again, out of reach of whoever had it before."""
    fence = sql.LETTERS.get(tx, number).fence
    return move(
        tx,
        sql.LETTERS,
        verb,
        number,
        guard=fence,
        fence=fence + 1,
        owner=None,
        due_at=tx.now,
        **columns,
    )


def max_attempts(tx: Tx, letter: Letter) -> int:
    """Return the number of attempts after which this letter becomes a dead letter."""
    return int(_setting(tx, "mail.max_attempts", letter))


def _setting(tx: Tx, name: str, letter: Letter) -> Any:
    """What was chosen for the letter's agent, its project, or everybody."""
    return settings.value(tx, name, agent=agent_of(letter.mailbox), project=letter.project_id)


def _claimed(letter: Letter | str, fence: int | None) -> tuple[int, int]:
    """Number and fence of a letter that the caller has out."""
    if isinstance(letter, Letter):
        fence, letter = letter.fence, letter.id
    if fence is None or check_int(fence, "The fence") < 1:
        raise Invalid("Say which claim you speak of: give the fence that came with the letter.")
    return number_of("let", letter), fence
