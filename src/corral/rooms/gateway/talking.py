"""Sessions that agents have with places: their letters, and the turns that use them up."""

from collections.abc import Sequence

import msgspec

from corral.db.tx import Tx
from corral.kernel.clock import DAY
from corral.kernel.errors import NotFound
from corral.kernel.ids import number_of
from corral.kernel.text import encode_json, printable
from corral.rooms.alerts import ops as alerts
from corral.rooms.gateway import exchanges_sql, sending, sql
from corral.rooms.gateway.letters import Chat, asked_in, chat_of, errand_of
from corral.rooms.gateway.model import (
    Fenced,
    Message,
    Place,
    Route,
    Sender,
    Talk,
    Unheard,
    Wiring,
)
from corral.rooms.gateway.routing import seat
from corral.rooms.mail import looking
from corral.rooms.mail import ops as mail
from corral.rooms.mail.model import Draft, Letter, LetterState
from corral.rooms.projects import ops as projects
from corral.rooms.schedules import history as occurrences
from corral.rooms.sessions import ops as sessions
from corral.rooms.sessions.model import Session, SessionState

MOST_LETTERS = 10
"""Letters that one turn is given."""
MOST_CONTEXT = 20
"""Messages from between that are told with them."""


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
    found = sending.address_of(tx, talk) if talk is not None else None
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
    if found := _open_talk(tx, agent_id, where, thread):
        return found
    session = sessions.open_session(
        tx, agent_id, project=project, title=place.called[:60], reply_to=place.mailbox
    )
    return begin_talk(tx, session, where, thread)


def for_letters(tx: Tx, agent_id: str) -> Talk:
    """The session in which an agent is woken for letters that belong to no chat."""
    if found := _open_talk(tx, agent_id, "", "desk"):
        return found
    session = sessions.open_session(tx, agent_id, title="Letters of other agents")
    return begin_talk(tx, session, "", "desk")


def _open_talk(tx: Tx, agent_id: str, where: str, thread: str) -> Talk | None:
    """The talk that is there, with nobody else beginning one meanwhile; None: one is to be begun,
    also in the place of one whose session somebody closed."""
    tx.serialize(f"talk:{agent_id}:{where}:{thread}")
    found = tx.one(sql.TALK_OF, agent_id=agent_id, place_id=where, thread=thread)
    if found is None or found.run_id or _is_open(tx, found.session_id):
        return found
    tx.run(sql.DROP_TALK, session_id=found.session_id)
    return None


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
    for mailbox in looking.lines(tx, "session"):
        talk = talk_of(tx, mailbox.removeprefix("session:"))
        if talk is None or talk.run_id is not None:
            continue
        letters = batch(tx, talk)
        if letters:
            found.append((letters[0].line_at, number_of("let", letters[0].id), talk))
    return [talk for _, _, talk in sorted(found, key=lambda each: each[:2])]


def next_due(tx: Tx) -> int | None:
    """When the next letter of a session without a run can be worked on."""
    moments = [
        due
        for mailbox in looking.lines(tx, "session")
        if (talk := talk_of(tx, mailbox.removeprefix("session:"))) is not None
        and talk.run_id is None
        and (due := looking.next_due(tx, mailbox)) is not None
        and due > tx.now
    ]
    return min(moments, default=None)


def busy(tx: Tx, *, after: str = "", limit: int = 200) -> list[Talk]:
    """The sessions whose letters a run works on."""
    return tx.all(sql.BUSY_TALKS, after=after, limit=limit)


def count_busy(tx: Tx) -> int:
    """How many those are."""
    return int(tx.value(sql.COUNT_BUSY))


def take(tx: Tx, talk: Talk) -> list[Letter]:
    """Take out the letters of a session's next turn; they stay out until the turn ends.

    Several that came from one place are told together; one that failed before goes alone, so that
    it takes no other down with it.
    """
    wanted = batch(tx, talk)
    if not wanted:
        return []
    taken = mail.claim(
        tx, talk.mailbox, owner=f"talk:{talk.session_id}", limit=len(wanted), lease_ms=DAY
    )
    return mail.retire(tx, taken)


def batch(tx: Tx, talk: Talk) -> list[Letter]:
    """The letters that the next turn would be given; none when only notices wait, which nobody has
    to be woken for."""
    line = looking.list_waiting(tx, mailbox=talk.mailbox, limit=MOST_LETTERS).items
    found: list[Letter] = []
    address: tuple[str, str | None] | None = None
    for letter in line:
        if letter.due_at > tx.now or letter.priority != line[0].priority:
            break
        if letter.attempts and found:
            break
        where = _address(letter)
        if where is not None and address is not None and where != address:
            break
        address = address or where
        found.append(letter)
        if letter.attempts:
            break
    return found if any(not _is_notice(letter) for letter in found) else []


def _address(letter: Letter) -> tuple[str, str | None] | None:
    asked = asked_in(letter)
    return (asked.place, asked.thread) if asked is not None and asked.place else None


def _is_notice(letter: Letter) -> bool:
    return isinstance(letter.body, dict) and "undelivered" in letter.body


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
        if (letter.sender or "").startswith("agent:"):
            tx.one(exchanges_sql.READ_EXCHANGE, letter_id=letter.id, run_id=run_id)


def last_told(letters: Sequence[Letter]) -> int:
    """The number of the last message that letters tell."""
    chats = [chat_of(letter) for letter in letters]
    return max((number_of("msg", chat.message) for chat in chats if chat is not None), default=0)


def end(tx: Tx, talk: Talk) -> Talk | None:
    """The run is over; None when somebody else said so already."""
    return tx.one(sql.END_TURN, session_id=talk.session_id, run_id=talk.run_id)


def used_up(tx: Tx, talk: Talk) -> None:
    """The turn that was given these letters ended well: they are done."""
    for fenced in talk.letters:
        mail.ack(tx, fenced.id, fence=fenced.fence)


def turned_down(tx: Tx, talk: Talk, reason: str) -> None:
    """Somebody stopped the turn: its letters are refused, and their senders told why."""
    for fenced in talk.letters:
        mail.refuse(tx, fenced.id, reason, fence=fenced.fence)


def missed(tx: Tx, letters: Sequence[Letter | Fenced], reason: str) -> None:
    """The turn failed: its letters come again after a pause, or are dead at the limit, of which
    their senders and the operator are told."""
    for letter in letters:
        said = mail.fail(tx, letter.id, reason, fence=letter.fence)
        if said.state is LetterState.DEAD:
            alerts.raise_alert(
                tx,
                "undelivered",
                said.id,
                edge=said.fence,
                data={"mailbox": said.mailbox, "reason": reason[:200]},
            )


# -- what an agent is told ------------------------------------------------------------------------


def words(tx: Tx, talk: Talk, letters: Sequence[Letter]) -> str:
    """What the agent is told: what was said, by whom and where, and what came in between."""
    parts = [_context(tx, talk, letters), *told(letters)]
    return "\n\n".join(part for part in parts if part)


def told(letters: Sequence[Letter]) -> list[str]:
    """What each letter tells."""
    return [_told(letter, len(letters) == 1) for letter in letters]


def _told(letter: Letter, alone: bool) -> str:
    chat = chat_of(letter)
    if chat is not None:
        listed = [file.get("path") or file.get("reason") for file in chat.files]
        attached = [f"[attached: {each}]" for each in listed]
        if chat.direct and alone:
            return "\n".join([chat.text, *attached])
        return "\n".join([_said(f"{chat.sender} in {chat.place_name}", chat.text), *attached])
    return _other(letter)


def _said(who: str, text: str) -> str:
    """Who said what, where several may have spoken: whatever lines somebody writes stand further in
    than a speaker's name, so that nobody speaks in another's."""
    return f"{printable(who)}: " + "\n    ".join(text.splitlines() or [""])


def _other(letter: Letter) -> str:
    """A letter that came from elsewhere: what never arrived, an answer, a timer, another agent."""
    body = letter.body
    errand = errand_of(letter)
    if errand is not None:
        return (
            f"{errand.text}\n\nIts script found:\n{errand.found}" if errand.found else errand.text
        )
    if isinstance(body, str):
        return body if letter.sender is None else f"[From {letter.sender}] {body}"
    if isinstance(body, dict) and body.get("kind") == "notice" and letter.sender is None:
        return f"[{body.get('reason')}]"
    if isinstance(body, dict) and "undelivered" in body:
        return f"[What you said did not arrive ({body['undelivered']}): {body.get('reason')}]"
    if isinstance(body, dict) and body.get("kind") == "request" and letter.sender is None:
        return f"[{body.get('text')}]"
    if isinstance(body, dict) and body.get("kind") == "question" and letter.sender is None:
        said = body.get("answer") or f"no answer; it is {body.get('state')}"
        return f"[Your question {body.get('text')!r}, by {body.get('answered_by')}: {said}]"
    return f"[From {letter.sender or 'Corral'}] {encode_json(body, 'The letter')}"


def _context(tx: Tx, talk: Talk, letters: Sequence[Letter]) -> str:
    """What was said in the place since the agent was last told, and did not wake it."""
    chats = [chat for letter in letters if (chat := chat_of(letter)) is not None and chat.keeps]
    if not chats:
        return ""
    first = number_of("msg", chats[0].message)
    between = tx.all(
        sql.MESSAGES_OF_PLACE, place_id=chats[0].place, before=first, limit=MOST_CONTEXT
    )
    lines = [
        _said(_speaker(tx, message), message.text)
        for message in reversed(between)
        if number_of("msg", message.id) > talk.seen
        and message.direction == "in"
        and message.kind == "text"
        and message.state in ("heard", "unheard")
        and not any(route.heard and route.agent_id == talk.agent_id for route in message.routes)
    ]
    return "Said here before:\n" + "\n".join(lines) if lines else ""


def _speaker(tx: Tx, message: Message) -> str:
    return sql.SENDERS.get(tx, message.sender_id).called if message.sender_id else "somebody"


def answer(tx: Tx, talk: Talk, run_id: str, text: str) -> list[Message]:
    """Say what a turn ended with where its session is answered; what the agent said there in the
    same words during the turn is not said twice."""
    address = sending.address_of(tx, talk)
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
    address = sending.address_of(tx, talk)
    if address is None:
        return []
    place, thread = address
    # One answer for what it began with, and one for each time that it asked for more.
    turn = f":{talk.letters[0].id}" if talk.letters and talk.letters[0].late else ""
    return sending.queue(
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
    address = sending.address_of(tx, talk)
    if address is None:
        return []
    place, thread = address
    return sending.queue(tx, place, text, thread=thread, key=f"{run_id}:notice")
