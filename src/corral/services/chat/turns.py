"""Turns of chat sessions: letters become the prompt of a run, and its result becomes the answer.

A turn starts in one transaction (claim the letters, queue the run) and ends in one (acknowledge the
letters, queue the answer). After a crash in between, the session still records which run has its
letters, so any process can end the turn.
"""

import logging
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
from corral.domain.chat.model import Conversation
from corral.domain.nodes import ops as nodes
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Launch, Run, RunState
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.sandbox_bridge.letters import split_by_ack, with_sandbox_paths
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.clock import MINUTE
from corral.kernel.errors import CorralError, NotFound, Refused, StoreUnavailable
from corral.services.chat import sandbox_sync
from corral.services.chat.session_folder import session_folder
from corral.services.runs import request, resumption

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_ANSWER = 64_000  # characters at the end of a plain command's output
MAX_TURNS = 50
HOST_TIMEOUT_MS = 5 * MINUTE  # after which a silent machine is considered gone

log = logging.getLogger("corral")


def start_turns(database: "Database") -> list[Run]:
    """Start a turn for each session with pending letters, oldest first; returns the queued runs.

    Respects the limit of concurrent turns. A session that cannot be started does not block others.
    """
    started = []
    for conversation in database.read(conversations_turns.list_waiting):
        try:
            run = _start(database, conversation)
        except StoreUnavailable:
            raise
        except Exception as error:
            # Skip this session, so that it does not block the others.
            log.error(
                "cannot start a turn of session %s: %s", conversation.session_id, _reason(error)
            )
            continue
        if run is not None:
            started.append(run)
    return started


def _start(database: "Database", conversation: Conversation) -> Run | None:
    try:
        folder = database.read(partial(_folder, conversation=conversation))
        if folder is not None:
            _make_folder(folder)
        return database.write(partial(start_turn, session=conversation.session_id, folder=folder))
    except StoreUnavailable:
        raise
    except Exception as error:
        # Counts as a failed attempt. Poison messages that trigger a bug of the program become dead
        # letters too, instead of blocking every session.
        fail = partial(fail_turn_start, session=conversation.session_id, reason=_reason(error))
        database.write(fail)
        return None


def _reason(error: Exception) -> str:
    """Return the message of an error; log the traceback of an unexpected one."""
    if isinstance(error, CorralError):
        return error.message
    log.error("unexpected error in a turn", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _folder(tx: Tx, conversation: Conversation) -> str | None:
    """Return the private folder of an agent that has no project and no workspace.

    Returns None when the agent has either.
    """
    session = sessions.get(tx, conversation.session_id)
    agent = agents.get(tx, conversation.agent_id)
    if session.project_id is not None or agent.workspace is not None:
        return None
    return str(config.home() / "workspaces" / agent.id)


def _make_folder(folder: str) -> None:
    try:
        config.make_private_folder(Path(folder))
    except OSError as error:
        raise Refused(
            f"Cannot create the folder {folder}: {error.strerror}. Fix that, or give the agent a "
            "workspace.",
            folder=folder,
            reason="folder_not_created",
        ) from None


def start_turn(tx: Tx, session: str, folder: str | None) -> Run | None:
    """Claim the letters of a session and queue a run for them, in one transaction.

    Returns None when there are no letters, the limit of concurrent turns is reached, or a run is
    live in the session.
    """
    tx.serialize("chat")
    if conversations_turns.count_busy(tx) >= int(settings.get_value(tx, "chat.max_concurrent")):
        return None
    conversation = conversations_turns.find_conversation(tx, session)
    if conversation is None or conversation.run_id is not None or _has_live_run(tx, session):
        return None
    letters = conversations_turns.claim_letters(tx, conversation)
    if not letters:
        return None
    sandbox = sandbox_bridge.select_sandbox(tx, conversation)
    if sandbox != "none":
        letters = with_sandbox_paths(letters, session_folder(session))
    prompt = prompts.build_prompt(tx, conversation, letters)
    run_request = request.RunRequest(
        prompt=prompt.text,
        recorded_turns=prompt.turns,
        title=prompt.title,
        dir=folder,
        sandbox=sandbox,
        host=_replacement_host(tx, session),
    )
    run = resumption.resume_run(tx, session, run_request)
    conversations_turns.begin_chat_turn(tx, conversation, run.id, letters)
    return run


def _has_live_run(tx: Tx, session: str) -> bool:
    """Return whether a run is live in this session, such as one that a person started."""
    latest = runs.list_runs(tx, session=session, limit=1).items
    return bool(latest) and latest[0].is_live


def _replacement_host(tx: Tx, session: str) -> str | None:
    """Return this machine if the machine of a session is gone.

    Returns None when the session stays on its machine. The provider's own conversation was on the
    lost machine, so its id is cleared, and the next prompt repeats the conversation.
    """
    latest = runs.list_runs(tx, session=session, limit=1).items
    if not latest:
        return None
    before = latest[0]
    host = runs.get_launch(tx, before.id).host or before.host
    # A run that never started was ended because its machine was considered gone.
    last_seen = before.ended_at if before.started_at is not None else before.created_at
    if host is None or not _is_gone(tx, host, last_seen or 0):
        return None
    row = sessions.get(tx, session)
    if row.provider is not None and row.provider_session is not None:
        sessions.set_provider_session(tx, row, row.provider, None)
    return process.host()


def _is_gone(tx: Tx, host: str, since: int) -> bool:
    """Return whether a machine is considered gone: its daemon has been silent for too long."""
    late = tx.now - HOST_TIMEOUT_MS
    return host != process.host() and since < late and nodes.is_silent(tx, host, since=late)


def fail_turn_start(tx: Tx, session: str, reason: str) -> None:
    """Record a failed start: the letters are retried later, or become dead letters."""
    conversation = conversations_turns.find_conversation(tx, session)
    if conversation is not None and conversation.run_id is None:
        conversations_turns.fail_letters(
            tx, conversations_turns.claim_letters(tx, conversation), reason
        )


# -- the end of a turn ----------------------------------------------------------------------------


def end_turns(database: "Database", *, local: bool = False) -> list[Conversation]:
    """End the turns whose run has ended; returns their sessions.

    With `local`, only turns whose run was on this machine. A turn that cannot be ended does not
    block others.
    """
    ended = []
    after = ""
    while page := database.read(partial(conversations_turns.list_busy, after=after)):
        for conversation in page:
            assert conversation.run_id is not None
            after = conversation.run_id
            try:
                done = _end(database, conversation, local)
            except StoreUnavailable:
                raise
            except Exception as error:
                # Skip this turn, so that it does not block the others.
                log.error("cannot end the turn of %s: %s", conversation.run_id, _reason(error))
                continue
            if done is not None:
                ended.append(done)
    return ended


def _end(database: "Database", conversation: Conversation, local: bool) -> Conversation | None:
    """End the turn if its run has ended; returns None when there is nothing to do."""
    run = _find_run(database, str(conversation.run_id))
    if run is None:
        return None if local else _end_plain(database, conversation, None)
    if run.is_live:
        if local or run.state is not RunState.QUEUED:
            return None
        return database.write(partial(cancel_unstarted_turn, conversation=conversation, run=run))
    launch = database.read(lambda tx: runs.get_launch(tx, run.id))
    if local and process.host() not in (run.host, launch.host):
        return None
    if launch.has_session_sandbox:
        return _end_sandboxed(database, conversation, run, launch)
    return _end_plain(database, conversation, run)


def _find_run(database: "Database", id: str) -> Run | None:
    try:
        return database.read(lambda tx: runs.get(tx, id))
    except NotFound:
        return None


def _end_plain(
    database: "Database", conversation: Conversation, run: Run | None
) -> Conversation | None:
    """End a turn without a sandbox; returns None while its output is only on another machine."""
    try:
        text = _plain_answer(database, run) if run is not None else None
    except Refused as elsewhere:
        assert run is not None
        if database.clock.now() < (run.ended_at or 0) + HOST_TIMEOUT_MS:
            return None  # the other machine stores the output when it seals it
        text = f"[{elsewhere.message}]"
    return database.write(partial(end_turn, conversation=conversation, run=run, text=text))


def _end_sandboxed(
    database: "Database", conversation: Conversation, run: Run, launch: Launch
) -> Conversation | None:
    """End a turn of a sandboxed agent, whose file has its messages and acknowledgements.

    Returns None while the file is on another machine that may come back, or is not readable yet.
    """
    host = launch.host or run.host
    if host not in (None, process.host()):
        return database.write(
            partial(end_unreadable_turn, conversation=conversation, run=run, host=str(host))
        )
    result = sandbox_sync.finish_session(
        database, conversation.session_id, run, str(launch.sandbox)
    )
    if result.busy:
        return None
    return database.write(
        partial(end_sandboxed_turn, conversation=conversation, run=run, result=result)
    )


def end_sandboxed_turn(
    tx: Tx, conversation: Conversation, run: Run, result: sandbox_sync.SyncResult
) -> Conversation | None:
    """End a sandboxed turn: acknowledge the letters that the agent acknowledged.

    This does not depend on how the run ended. The other letters are retried, or refused when the
    run was cancelled. Returns None when another process has ended the turn.
    """
    ended = conversations_turns.end_chat_turn(tx, conversation)
    if ended is None:
        return None
    done, rest = split_by_ack(conversation, result.acks)
    conversations_turns.ack_letters(tx, msgspec.structs.replace(conversation, claimed_letters=done))
    if run.state is RunState.CANCELLED:
        left = msgspec.structs.replace(conversation, claimed_letters=rest)
        conversations_turns.refuse_letters(tx, left, run.reason or "the run was stopped")
    elif rest:
        conversations_turns.fail_letters(tx, rest, _why_not_acknowledged(run, result))
    elif not conversations_turns.has_sent_message(tx, conversation, run.id):
        _notify_no_answer(tx, conversation, run)
    return ended


def _why_not_acknowledged(run: Run, result: sandbox_sync.SyncResult) -> str:
    """Return why a sandboxed turn left letters that its agent did not acknowledge."""
    if result.error:
        return f"the file of the agent was rejected: {result.error}"
    if run.state is RunState.COMPLETED:
        return "the agent did not acknowledge the letter"
    return run.reason or f"the run ended as {run.state}"


def end_unreadable_turn(
    tx: Tx, conversation: Conversation, run: Run, host: str
) -> Conversation | None:
    """End a sandboxed turn whose machine is gone, with the messages of its agent.

    Its letters are retried, unless the agent had answered already: that avoids a second answer.
    Returns None while the machine may come back.
    """
    if not _is_gone(tx, host, run.ended_at or 0):
        return None
    ended = conversations_turns.end_chat_turn(tx, conversation)
    if ended is None:
        return None
    if run.state is RunState.CANCELLED:
        conversations_turns.refuse_letters(tx, conversation, run.reason or "the run was stopped")
    elif conversations_turns.has_sent_message(tx, conversation, run.id):
        conversations_turns.ack_letters(tx, conversation)
        name = agents.get(tx, conversation.agent_id).name
        text = f"{name} was running on {host}, which is gone. Its answer may be incomplete."
        conversations_turns.send_notice(tx, conversation, run.id, text)
    else:
        conversations_turns.fail_letters(
            tx, conversation.claimed_letters, f"{host}, where the agent was running, is gone"
        )
    return ended


def cancel_unstarted_turn(tx: Tx, conversation: Conversation, run: Run) -> Conversation | None:
    """Cancel a queued run whose machine is gone, and retry its letters.

    Returns None while the machine may come back.
    """
    current = runs.get(tx, run.id)
    waits = current.state is RunState.QUEUED and current.host is not None
    if not waits or not _is_gone(tx, str(current.host), max(current.created_at, current.due_at)):
        return None
    ended = conversations_turns.end_chat_turn(tx, conversation)
    if ended is not None:
        reason = f"{current.host}, where the run had to start, is gone"
        runs.request_stop(tx, current.id, reason=reason)
        conversations_turns.fail_letters(tx, conversation.claimed_letters, reason)
    return ended


def _notify_no_answer(tx: Tx, conversation: Conversation, run: Run) -> None:
    name = agents.get(tx, conversation.agent_id).name
    text = f"{name} ended its turn without an answer."
    conversations_turns.send_notice(tx, conversation, run.id, text)


def end_turn(
    tx: Tx, conversation: Conversation, run: Run | None, text: str | None
) -> Conversation | None:
    """End a turn: acknowledge its letters if the run completed, and queue the answer.

    The letters are refused when the run was cancelled, otherwise retried. Returns None when another
    process has ended the turn.
    """
    ended = conversations_turns.end_chat_turn(tx, conversation)
    if ended is None or conversation.run_id is None:
        return None
    if run is None:
        conversations_turns.fail_letters(
            tx, conversation.claimed_letters, "the run of the turn was deleted"
        )
    elif run.state is RunState.COMPLETED:
        _answer(tx, conversation, run, text)
        conversations_turns.ack_letters(tx, conversation)
    elif run.state is RunState.CANCELLED:
        conversations_turns.refuse_letters(tx, conversation, run.reason or "the run was stopped")
    else:
        conversations_turns.fail_letters(
            tx, conversation.claimed_letters, run.reason or f"the run ended as {run.state}"
        )
    return ended


def _answer(tx: Tx, conversation: Conversation, run: Run, text: str | None) -> None:
    if not conversation.claimed_letters:
        return  # the run acknowledged and answered everything itself
    # A run that fetched further messages answers each of them; its last message is no answer.
    late = any(fenced.late for fenced in conversation.claimed_letters)
    answer = None if late else text or _last_message(tx, run)
    if text and run.session_id is not None:
        # A plain command records no turns: its output is its message.
        with suppress(CorralError):
            sessions.append(tx, run.session_id, "assistant", text, key=f"{run.id}:answer")
    if answer:
        conversations_turns.send_answer(tx, conversation, run.id, answer)
        agent_mail.reply(tx, conversation, run.id, answer)
    elif not conversations_turns.has_sent_message(tx, conversation, run.id):
        _notify_no_answer(tx, conversation, run)


def _last_message(tx: Tx, run: Run) -> str | None:
    """Return the last message of the agent in a run."""
    if run.session_id is None:
        return None
    turns = sessions.list_latest_turns(tx, run.session_id, MAX_TURNS).items
    messages = [
        turn.content
        for turn in turns
        if turn.run_id == run.id and turn.role == "assistant" and not turn.tool_name
    ]
    return next((text for text in reversed(messages) if text.strip()), None)


def _plain_answer(database: "Database", run: Run) -> str | None:
    """Return the output of a plain command as its answer.

    Raises Refused while the output is only on another machine.
    """
    if run.provider != "plain" or run.state is not RunState.COMPLETED:
        return None
    from corral.services.runs.outputs import follow_output

    try:
        text = b"".join(piece.text for piece in follow_output(database, run.id))
    except NotFound:
        return None
    # Neither engine stores NUL characters.
    answer = text.decode(errors="replace").replace("\0", "")
    return answer.strip()[-MAX_ANSWER:] or None
