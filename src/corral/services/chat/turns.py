"""Sessions with places are woken: their letters become the prompt of a run, and what the run ends
with becomes the answer.

A turn begins in one transaction (the letters are taken out, the run is queued) and ends in one (the
letters are done, the answer is queued). Whoever dies in between leaves a session that says which
run has its letters, and anybody can go on from there.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters import process
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat.conversations import agent_mail, prompts
from corral.domain.chat.conversations import turns as conversations_turns
from corral.domain.chat.model import Talk
from corral.domain.nodes import ops as nodes
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Launch, Run, RunState
from corral.domain.sandbox_bridge import ops as boxes
from corral.domain.sandbox_bridge.letters import as_seen, split
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.clock import MINUTE
from corral.kernel.errors import CorralError, NotFound, Refused, StoreUnavailable
from corral.services.chat import sandbox_sync
from corral.services.runs import request

if TYPE_CHECKING:
    from corral.api.outputs import Outputs
    from corral.db.database import Database

MOST_ANSWER = 64_000  # characters of a plain command's output that are its answer
MOST_TURNS = 50
LATEST_MS = 5 * MINUTE  # for what was said to come from the machine that ran it

log = logging.getLogger("corral")


def wake(database: "Database") -> list[Run]:
    """Begin a turn for each session that has letters, in the order in which they came, while there
    is room; gives the runs that were queued."""
    begun = []
    for talk in database.read(conversations_turns.waiting):
        try:
            run = _begin(database, talk)
        except StoreUnavailable:
            raise
        except Exception as error:
            # Skip a session that cannot be woken, so that it does not hold up the others.
            log.error("session %s cannot be woken: %s", talk.session_id, _reason(error))
            continue
        if run is not None:
            begun.append(run)
    return begun


def _begin(database: "Database", talk: Talk) -> Run | None:
    try:
        folder = database.read(partial(_folder, talk=talk))
        if folder is not None:
            _make(folder)
        return database.write(partial(begin_turn, session=talk.session_id, folder=folder))
    except StoreUnavailable:
        raise
    except Exception as error:
        # A turn that cannot be requested is a failed attempt, like any other. Poison messages that
        # meet a defect of the program become dead letters too, instead of blocking every session.
        lost = partial(cannot_begin, session=talk.session_id, reason=_reason(error))
        database.write(lost)
        return None


def _reason(error: Exception) -> str:
    """Return the message of an error; the traceback of an unexpected one goes to the log."""
    if isinstance(error, CorralError):
        return error.message
    log.error("unexpected error in a turn", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _folder(tx: Tx, talk: Talk) -> str | None:
    """Where an agent works that has neither a project nor a folder: in one of Corral's."""
    session = sessions.get(tx, talk.session_id)
    agent = agents.get(tx, talk.agent_id)
    if session.project_id is not None or agent.workspace is not None:
        return None
    return str(config.home() / "workspaces" / agent.id)


def _make(folder: str) -> None:
    try:
        config.make_private_folder(Path(folder))
    except OSError as error:
        raise Refused(
            f"The folder {folder} cannot be created ({error.strerror}). Correct that, or give the "
            "agent a workspace.",
            folder=folder,
            reason="folder_not_created",
        ) from None


def begin_turn(tx: Tx, session: str, folder: str | None) -> Run | None:
    """Take a session's letters out and queue the run that is given them; None when there is nothing
    to do, or no room, or somebody else works in the session."""
    tx.serialize("gateway")
    if conversations_turns.count_busy(tx) >= int(settings.value(tx, "gateway.max_at_once")):
        return None
    talk = conversations_turns.talk_of(tx, session)
    if talk is None or talk.run_id is not None or _is_going(tx, session):
        return None
    letters = conversations_turns.take(tx, talk)
    if not letters:
        return None
    wanted = boxes.wanted(tx, talk)
    if wanted != "none":
        letters = as_seen(letters, sandbox_sync.folder_of(session))
    prompt = prompts.build(tx, talk, letters)
    wish = request.Wish(
        prompt=prompt.text,
        told=prompt.turns,
        title=prompt.title,
        dir=folder,
        sandbox=wanted,
        host=_moved(tx, session),
    )
    run = request.resume(tx, session, wish)
    conversations_turns.begin(tx, talk, run.id, letters)
    return run


def _is_going(tx: Tx, session: str) -> bool:
    """Whether somebody has started a run in this session, who is to finish first."""
    latest = runs.list_runs(tx, session=session, limit=1).items
    return bool(latest) and latest[0].is_live


def _moved(tx: Tx, session: str) -> str | None:
    """This machine, where the one that had a session is gone; None: where it was. What its provider
    remembers of it is gone, too, and told anew."""
    latest = runs.list_runs(tx, session=session, limit=1).items
    if not latest:
        return None
    before = latest[0]
    host = runs.launch_of(tx, before.id).host or before.host
    # One that never began was ended by whoever held its machine for gone.
    there = before.ended_at if before.started_at is not None else before.created_at
    if host is None or not _is_gone(tx, host, there or 0):
        return None
    found = sessions.get(tx, session)
    if found.provider is not None and found.provider_session is not None:
        sessions.set_provider_session(tx, found, found.provider, None)
    return process.host()


def _is_gone(tx: Tx, host: str, since: int) -> bool:
    """Whether a machine is held for gone: it has had its time, and its daemon was not heard."""
    late = tx.now - LATEST_MS
    return host != process.host() and since < late and nodes.is_silent(tx, host, since=late)


def cannot_begin(tx: Tx, session: str, reason: str) -> None:
    """A turn cannot be begun: its letters come again later, or are dead at the limit."""
    talk = conversations_turns.talk_of(tx, session)
    if talk is not None and talk.run_id is None:
        conversations_turns.missed(tx, conversations_turns.take(tx, talk), reason)


# -- the end of a turn ----------------------------------------------------------------------------


def settle(
    database: "Database", outputs: "Callable[[], Outputs]", *, here: bool = False
) -> list[Talk]:
    """End the turns whose run is over, or those of this machine's runs; gives their sessions."""
    settled = []
    after = ""
    while page := database.read(partial(conversations_turns.busy, after=after)):
        for talk in page:
            assert talk.run_id is not None
            after = talk.run_id
            try:
                done = _settle(database, talk, outputs, here)
            except StoreUnavailable:
                raise
            except Exception as error:
                # Skip a turn that cannot be ended, so that it does not hold up the others.
                log.error("the turn of %s cannot be ended: %s", talk.run_id, _reason(error))
                continue
            if done is not None:
                settled.append(done)
    return settled


def _settle(
    database: "Database", talk: Talk, outputs: "Callable[[], Outputs]", here: bool
) -> Talk | None:
    run = _run_of(database, str(talk.run_id))
    if run is not None and run.is_live and (here or run.state is not RunState.QUEUED):
        return None
    launch = _launch_of(database, run)
    if here and not _was_here(run, launch):
        return None
    if run is not None and run.is_live:
        return database.write(partial(end_unbegun, talk=talk, run=run))
    if run is not None and launch is not None and launch.is_boxed:
        return _settle_boxed(database, talk, run, launch)
    return _settle_plain(database, talk, run, outputs)


def _run_of(database: "Database", id: str) -> Run | None:
    try:
        return database.read(lambda tx: runs.get(tx, id))
    except NotFound:
        return None


def _launch_of(database: "Database", run: Run | None) -> Launch | None:
    return database.read(lambda tx: runs.launch_of(tx, run.id)) if run is not None else None


def _was_here(run: Run | None, launch: Launch | None) -> bool:
    """Whether this machine had a run, or was to have it."""
    hosts = (run and run.host, launch and launch.host)
    return process.host() in hosts


def _settle_plain(
    database: "Database", talk: Talk, run: Run | None, outputs: "Callable[[], Outputs]"
) -> Talk | None:
    """End a turn whose run said all by itself; None also while its words are on another machine."""
    try:
        text = _plain_answer(outputs(), run) if run is not None else None
    except Refused as elsewhere:
        assert run is not None
        if database.clock.now() < (run.ended_at or 0) + LATEST_MS:
            return None  # the machine that ran it brings it into the store when it seals it
        text = f"[{elsewhere.message}]"
    return database.write(partial(end_turn, talk=talk, run=run, text=text))


def _settle_boxed(database: "Database", talk: Talk, run: Run, launch: Launch) -> Talk | None:
    """The same where the agent was boxed: its file has what it said and acknowledged. None also
    when that is on another machine that may come back, or cannot be read yet."""
    host = launch.host or run.host
    if host not in (None, process.host()):
        return database.write(partial(end_unread, talk=talk, run=run, host=str(host)))
    looked = sandbox_sync.close(database, talk.session_id, run, str(launch.sandbox))
    if looked.busy:
        return None
    return database.write(partial(end_boxed, talk=talk, run=run, looked=looked))


def end_boxed(tx: Tx, talk: Talk, run: Run, looked: sandbox_sync.Looked) -> Talk | None:
    """A boxed session's run is over. What its agent acknowledged is done, however the run ended;
    the rest comes again, or is refused when somebody stopped it."""
    ended = conversations_turns.end(tx, talk)
    if ended is None:
        return None
    done, rest = split(talk, looked.acks)
    conversations_turns.used_up(tx, msgspec.structs.replace(talk, letters=done))
    if run.state is RunState.CANCELLED:
        left = msgspec.structs.replace(talk, letters=rest)
        conversations_turns.turned_down(tx, left, run.reason or "it was stopped")
    elif rest:
        said = looked.trouble and f"what its agent wrote is not believed: {looked.trouble}"
        well = run.state is RunState.COMPLETED
        why = "its agent did not acknowledge it" if well else run.reason or f"it {run.state}"
        conversations_turns.missed(tx, rest, said or why)
    elif not conversations_turns.has_spoken(tx, talk, run.id):
        _say_nothing(tx, talk, run)
    return ended


def end_unread(tx: Tx, talk: Talk, run: Run, host: str) -> Talk | None:
    """A boxed session's run is over, and the machine with what its agent said is gone. What it was
    given comes again; where it had said something by then, that was the answer: nobody is answered
    twice. None while the machine may come back."""
    if not _is_gone(tx, host, run.ended_at or 0):
        return None
    ended = conversations_turns.end(tx, talk)
    if ended is None:
        return None
    if run.state is RunState.CANCELLED:
        conversations_turns.turned_down(tx, talk, run.reason or "it was stopped")
    elif conversations_turns.has_spoken(tx, talk, run.id):
        conversations_turns.used_up(tx, talk)
        name = agents.get(tx, talk.agent_id).name
        words = f"{name} was at work on {host}, which is gone; it may have had more to say."
        conversations_turns.notice(tx, talk, run.id, words)
    else:
        conversations_turns.missed(
            tx, talk.letters, f"{host}, where its agent was at work, is gone"
        )
    return ended


def end_unbegun(tx: Tx, talk: Talk, run: Run) -> Talk | None:
    """A session's run waits for a machine that is gone: it is cancelled, and its letters come
    again. None while the machine may come back."""
    found = runs.get(tx, run.id)
    waits = found.state is RunState.QUEUED and found.host is not None
    if not waits or not _is_gone(tx, str(found.host), max(found.created_at, found.due_at)):
        return None
    ended = conversations_turns.end(tx, talk)
    if ended is not None:
        reason = f"{found.host}, on which it was to run, is gone"
        runs.stop(tx, found.id, reason=reason)
        conversations_turns.missed(tx, talk.letters, reason)
    return ended


def _say_nothing(tx: Tx, talk: Talk, run: Run) -> None:
    name = agents.get(tx, talk.agent_id).name
    conversations_turns.notice(tx, talk, run.id, f"{name} ended its turn without an answer.")


def end_turn(tx: Tx, talk: Talk, run: Run | None, text: str | None) -> Talk | None:
    """A session's run is over. What it was given is done when it ended well; when somebody stopped
    it, it is refused; else it comes again. None when somebody else has said so already."""
    ended = conversations_turns.end(tx, talk)
    if ended is None or talk.run_id is None:
        return None
    if run is None:
        conversations_turns.missed(tx, talk.letters, "its run was deleted")
    elif run.state is RunState.COMPLETED:
        _answer(tx, talk, run, text)
        conversations_turns.used_up(tx, talk)
    elif run.state is RunState.CANCELLED:
        conversations_turns.turned_down(tx, talk, run.reason or "it was stopped")
    else:
        conversations_turns.missed(tx, talk.letters, run.reason or f"its run ended as {run.state}")
    return ended


def _answer(tx: Tx, talk: Talk, run: Run, text: str | None) -> None:
    if not talk.letters:
        return  # it has dealt with everything that it was told, and said so
    # One that asked for more says its answers as it goes; what it ends with is none.
    late = any(fenced.late for fenced in talk.letters)
    said = None if late else text or _last_words(tx, run)
    if text and run.session_id is not None:
        # A plain command says nothing of itself: its output is what it said.
        with suppress(CorralError):
            sessions.append(tx, run.session_id, "assistant", text, key=f"{run.id}:answer")
    if said:
        conversations_turns.answer(tx, talk, run.id, said)
        agent_mail.answer(tx, talk, run.id, said)
    elif not conversations_turns.has_spoken(tx, talk, run.id):
        _say_nothing(tx, talk, run)


def _last_words(tx: Tx, run: Run) -> str | None:
    """What an agent said last in a run, after everything that it did."""
    if run.session_id is None:
        return None
    turns = sessions.last(tx, run.session_id, MOST_TURNS).items
    spoken = [
        turn.content
        for turn in turns
        if turn.run_id == run.id and turn.role == "assistant" and not turn.tool_name
    ]
    return next((text for text in reversed(spoken) if text.strip()), None)


def _plain_answer(outputs: "Outputs", run: Run) -> str | None:
    """The output of a plain command, which is all that it says; Refused while it is on another
    machine alone."""
    if run.provider != "plain" or run.state is not RunState.COMPLETED:
        return None
    try:
        text = b"".join(piece.text for piece in outputs.follow(run.id))
    except NotFound:
        return None
    # Both engines keep no NUL; what is no text is shown as such.
    words = text.decode(errors="replace").replace("\0", "")
    return words.strip()[-MOST_ANSWER:] or None
