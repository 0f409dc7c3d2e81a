"""Sessions that agents have with places: their letters, and the turns that use them up."""

from collections.abc import Sequence

import msgspec

from corral.db.tx import Tx
from corral.domain.alerts import ops as alerts
from corral.domain.chat import sql
from corral.domain.chat.conversations.payloads import Chat, asked_in, chat_of, is_notice
from corral.domain.chat.inbound.router import seat
from corral.domain.chat.model import Fenced, Message, Place, Route, Sender, Talk, Unheard, Wiring
from corral.domain.chat.outbound import queue
from corral.domain.mail import chains, queries
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Draft, Letter, LetterState
from corral.domain.projects import ops as projects
from corral.domain.schedules import occurrences
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import Session, SessionState
from corral.kernel.clock import DAY
from corral.kernel.errors import NotFound
from corral.kernel.ids import number_of
from corral.kernel.pagination import MAX_LIMIT
from corral.kernel.text import encode_json

MOST_LETTERS = 10
"""Letters that one turn is given, not counting notices."""
MOST_CLAIMED = 50
"""Letters and notices that one turn is given. So many notices alone are worth a turn, and a full
batch of notices must not hide the letters behind it."""


def talk_of(tx: Tx, session: str) -> Talk | None:
    """What the gateway knows of a session; None: it has nothing to do with a place."""
    return tx.one(sql.TALK, session_id=session)


class Address(msgspec.Struct, frozen=True):
    """Where a session is answered."""

    place: Place
    thread: str | None


def address(tx: Tx, session: str) -> Address | None:
    """Where a session is answered; None: nowhere on a channel."""
    talk = talk_of(tx, session)
    found = queue.address_of(tx, talk) if talk is not None else None
    return Address(*found) if found is not None else None


def talks_of_place(tx: Tx, place_id: str) -> list[Talk]:
    """The sessions that agents have in a place."""
    return tx.all(sql.TALKS_OF_PLACE, place_id=place_id, limit=200)


def sit_down(tx: Tx, wiring: Wiring, place: Place, thread: str | None) -> Talk:
    """The session in which a wiring's agent hears a place; it is opened when it is first needed,
    and anew when somebody closed it."""
    where, in_thread = seat(wiring, place.id, thread)
    return take_seat(tx, wiring.agent_id, place, where, in_thread, project=_project(tx, wiring))


def take_seat(
    tx: Tx, agent_id: str, place: Place, where: str, thread: str, *, project: str | None
) -> Talk:
    """The session that an agent has for a chat and thread."""
    found, closed = _open_talk(tx, agent_id, where, thread)
    if found is not None:
        return found
    session = sessions.open_session(
        tx, agent_id, project=project, title=place.called[:60], reply_to=place.mailbox
    )
    return _replace(tx, closed, begin_talk(tx, session, where, thread))


def for_letters(tx: Tx, agent_id: str) -> Talk:
    """The session in which an agent is woken for letters that belong to no chat."""
    found, closed = _open_talk(tx, agent_id, "", "desk")
    if found is not None:
        return found
    session = sessions.open_session(tx, agent_id, title="Letters of other agents")
    return _replace(tx, closed, begin_talk(tx, session, "", "desk"))


def _replace(tx: Tx, closed: Talk | None, talk: Talk) -> Talk:
    """Let a talk take the place of one whose session was closed: letters to it go there."""
    if closed is not None:
        sessions.set_successor(tx, closed.session_id, talk.session_id)
    return talk


def _open_talk(tx: Tx, agent_id: str, where: str, thread: str) -> tuple[Talk | None, Talk | None]:
    """Return the open talk, if any, and the one that was dropped because its session is closed.
    No other transaction begins the same talk meanwhile."""
    tx.serialize(f"talk:{agent_id}:{where}:{thread}")
    found = tx.one(sql.TALK_OF, agent_id=agent_id, place_id=where, thread=thread)
    if found is None or found.run_id or _is_open(tx, found.session_id):
        return found, None
    tx.run(sql.DROP_TALK, session_id=found.session_id)
    # No loop claims the letters of a session without a talk.
    mail.refuse_waiting(tx, found.mailbox, reason="its session was closed")
    return None, found


def take_over(tx: Tx, session: str, run_id: str, number: int) -> Talk | None:
    """Go on to a message of a boxed agent's file, by its number; None: it was come to before, or
    the run's turn is over."""
    return tx.one(sql.TAKE, session_id=session, run_id=run_id, seq=number)


def begin_talk(tx: Tx, session: Session, where: str, thread: str) -> Talk:
    """Let a session be woken by its letters from now on."""
    made = tx.one(
        sql.ADD_TALK,
        session_id=session.id,
        agent_id=session.agent_id,
        place_id=where,
        thread=thread,
        now=tx.now,
    )
    assert made is not None
    return made


def _project(tx: Tx, wiring: Wiring) -> str | None:
    """Where the agent works; None: in its own folder, also when the project is gone."""
    try:
        return projects.get(tx, wiring.project_id).id if wiring.project_id else None
    except NotFound:
        return None


def _is_open(tx: Tx, session_id: str) -> bool:
    return sessions.get(tx, session_id).state is SessionState.OPEN


def draft(route: Route, wiring: Wiring, message: Message, place: Place, sender: Sender) -> Draft:
    """The letter that brings a message to the session in which an agent hears it."""
    return Draft(
        f"session:{route.session_id}",
        Chat(
            message=message.id,
            place=place.id,
            place_name=place.called,
            direct=place.direct,
            thread=message.thread,
            sender=sender.called,
            text=message.text,
            files=(message.data or {}).get("files", []),
            keeps=wiring.unheard is Unheard.KEEP,
        ),
        key=message.id,
        sender=place.mailbox,  # whoever wrote it is told should nobody answer
    )


# -- turns ----------------------------------------------------------------------------------------


def waiting(tx: Tx) -> list[Talk]:
    """The sessions that have something to do and no run, in the order in which it arrived."""
    found: list[tuple[int, int, Talk]] = []
    for mailbox in queries.lines(tx, "session"):
        talk = talk_of(tx, mailbox.removeprefix("session:"))
        if talk is None or talk.run_id is not None:
            continue
        letters = batch(tx, talk)
        if letters:
            found.append((letters[0].line_at, number_of("let", letters[0].id), talk))
    return [talk for _, _, talk in sorted(found, key=lambda each: each[:2])]


def next_due(tx: Tx) -> int | None:
    """When the next letter of a session without a run becomes due; None when none is to come."""
    moments = [
        letter.due_at
        for mailbox in queries.lines(tx, "session")
        if (talk := talk_of(tx, mailbox.removeprefix("session:"))) is not None
        and talk.run_id is None
        for letter in queries.list_waiting(tx, mailbox=mailbox, limit=MOST_LETTERS).items
        if letter.due_at > tx.now
    ]
    return min(moments, default=None)


def busy(tx: Tx, *, after: str = "", limit: int = 200) -> list[Talk]:
    """The sessions whose letters a run works on."""
    return tx.all(sql.BUSY_TALKS, after=after, limit=limit)


def is_used(tx: Tx) -> bool:
    """Whether the gateway has work: a channel exists, or letters (also of tasks and agents) wake a
    session."""
    return bool(tx.value(sql.IS_USED))


def count_busy(tx: Tx) -> int:
    """How many those are."""
    return int(tx.value(sql.COUNT_BUSY))


def take(tx: Tx, talk: Talk) -> list[Letter]:
    """Claim the letters of a session's next turn (see `batch`); they stay claimed until it ends."""
    wanted = batch(tx, talk)
    if not wanted:
        return []
    taken = mail.claim(tx, talk.mailbox, owner=_owner(talk), limit=len(wanted), lease_ms=DAY)
    return mail.retire(tx, taken)


def _owner(talk: Talk) -> str:
    return f"talk:{talk.session_id}"


def batch(tx: Tx, talk: Talk) -> list[Letter]:
    """The letters that the next turn is given; none when nothing has to be done now.

    Letters from one place share a turn. A letter that failed before goes without other letters, so
    that a poison message takes no other down with it. Notices go with the letter behind them and
    wake no agent by themselves, unless they fill a batch, or a letter of a lower priority waits.

    The rules only cut a prefix of what a claim gives, and an empty result means that no letter but
    notices is due. So no letter can block a session for longer than its own retries.
    """
    found: list[Letter] = []
    address: tuple[str, str | None] | None = None
    count = 0
    for letter in queries.list_claimable(tx, talk.mailbox, owner=_owner(talk), limit=MOST_CLAIMED):
        if is_notice(letter):
            found.append(letter)
            continue
        where = _address(letter)
        apart = where is not None and address is not None and where != address
        if count and (letter.attempts or apart or count == MOST_LETTERS):
            break
        address = address or where
        found.append(letter)
        count += 1
        if letter.attempts:
            break
    if count or len(found) == MOST_CLAIMED or (found and _has_other_due(tx, talk)):
        return found
    return []


def _has_other_due(tx: Tx, talk: Talk) -> bool:
    """Whether a letter of a lower priority waits behind notices: one claim holds one priority, so
    the notices need a turn of their own first."""
    line = queries.list_waiting(tx, mailbox=talk.mailbox, limit=MAX_LIMIT).items
    return any(letter.due_at <= tx.now and not is_notice(letter) for letter in line)


def _address(letter: Letter) -> tuple[str, str | None] | None:
    asked = asked_in(letter)
    return (asked.place, asked.thread) if asked is not None and asked.place else None


def begin(tx: Tx, talk: Talk, run_id: str, letters: Sequence[Letter]) -> Talk | None:
    """A run works on these letters from now on; None when another one has the session."""
    note_given(tx, letters, run_id)
    fenced = [Fenced(letter.id, letter.fence) for letter in letters]
    return tx.one(
        sql.BEGIN_TURN,
        session_id=talk.session_id,
        run_id=run_id,
        letters=encode_json(fenced, "The letters"),
        seen=last_told(letters),
    )


def note_given(tx: Tx, letters: Sequence[Letter], run_id: str) -> None:
    """A run is given letters: the moments of tasks and the exchanges of agents know it by that."""
    for letter in letters:
        occurrences.note_run(tx, letter, run_id)
        if chat_of(letter) is None:
            chains.read(tx, letter.id, run_id)


def last_told(letters: Sequence[Letter]) -> int:
    """The number of the last message that letters tell."""
    chats = [chat_of(letter) for letter in letters]
    return max((number_of("msg", chat.message) for chat in chats if chat is not None), default=0)


def end(tx: Tx, talk: Talk) -> Talk | None:
    """The run is over; None when somebody else said so already."""
    return tx.one(sql.END_TURN, session_id=talk.session_id, run_id=talk.run_id)


def used_up(tx: Tx, talk: Talk) -> None:
    """The turn that was given these letters ended well: they are done."""
    for letter in _still_claimed(tx, talk.letters):
        mail.ack(tx, letter)


def turned_down(tx: Tx, talk: Talk, reason: str) -> None:
    """A person stopped the turn: its letters are refused, and their senders notified."""
    for letter in _still_claimed(tx, talk.letters):
        mail.refuse(tx, letter, reason)


def missed(tx: Tx, letters: Sequence[Letter | Fenced], reason: str) -> None:
    """The turn failed: its letters come again after a pause, or are dead at the limit, and their
    senders and the operator are notified.

    A notice is dead one attempt earlier than the letters that it goes with, so that a notice which
    makes every turn fail leaves them an attempt without it.
    """
    for letter in _still_claimed(tx, letters):
        if is_notice(letter) and letter.attempts >= mail.max_attempts(tx, letter) - 1:
            said = mail.bury(tx, letter, reason)
        else:
            said = mail.fail(tx, letter, reason)
        if said.state is LetterState.DEAD:
            alerts.raise_alert(
                tx,
                "undelivered",
                said.id,
                edge=said.fence,
                data={"mailbox": said.mailbox, "reason": reason[:200]},
            )


def _still_claimed(tx: Tx, letters: Sequence[Letter | Fenced]) -> list[Letter]:
    """Return the letters that the turn still holds. A letter that was dropped, has expired or was
    claimed by another owner has its outcome already, and must not block the end of the turn."""
    held = (mail.hold(tx, number_of("let", each.id)) for each in letters)
    return [
        letter
        for letter, each in zip(held, letters, strict=True)
        if letter is not None and letter.ended_at is None and letter.fence == each.fence
    ]


# -- what an agent says ---------------------------------------------------------------------------


def answer(tx: Tx, talk: Talk, run_id: str, text: str) -> list[Message]:
    """Say what a turn ended with where its session is answered; what the agent said there in the
    same words during the turn is not said twice."""
    address = queue.address_of(tx, talk)
    if address is None:
        return []
    place = address[0]
    if any(
        each.place_id == place.id and each.text.strip() == text.strip()
        for each in _said_since(tx, talk, run_id)
    ):
        return []
    return say(tx, talk, run_id, text)


def say(tx: Tx, talk: Talk, run_id: str, text: str) -> list[Message]:
    """Say an answer to what a run was told where that came from, once."""
    address = queue.address_of(tx, talk)
    if address is None:
        return []
    place, thread = address
    # One answer for what it began with, and one for each time that it asked for more.
    turn = f":{talk.letters[0].id}" if talk.letters and talk.letters[0].late else ""
    return queue.queue(
        tx,
        place,
        text,
        agent_id=talk.agent_id,
        thread=thread,
        run_id=run_id,
        sender=talk.mailbox,
        key=f"{run_id}:answer{turn}",
    )


def _said_since(tx: Tx, talk: Talk, run_id: str) -> list[Message]:
    """What the agent said in a run since it was told what it works on."""
    said = tx.all(sql.SENT_IN_RUN, run_id=run_id, after=talk.seen, limit=100)
    return [each for each in said if each.direction == "out"]


def has_spoken(tx: Tx, talk: Talk, run_id: str) -> bool:
    """Whether the agent said anything on a channel since it was told what it works on."""
    return bool(_said_since(tx, talk, run_id))


def notice(tx: Tx, talk: Talk, run_id: str, text: str) -> list[Message]:
    """Say something about a turn where its session is answered, in Corral's own name."""
    address = queue.address_of(tx, talk)
    if address is None:
        return []
    place, thread = address
    return queue.queue(tx, place, text, thread=thread, key=f"{run_id}:notice")
