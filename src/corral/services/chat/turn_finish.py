"""The end of chat turns: the result of a run becomes the answer to its letters.

One transaction detaches the run from its session, records the outcome of the letters and queues the
answer. The run's machine may be lost: then another machine ends the chat turn (`turns`).
"""

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from corral.adapters.processes import process
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat.conversations import agent_mail, chat_turns, replies
from corral.domain.chat.model import Conversation
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Launch, Run, RunState
from corral.domain.sandbox_bridge.letters import split_by_ack
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import CorralError, NotFound, Refused, StoreUnavailable
from corral.services.chat import sandbox_sync
from corral.services.chat.turns import HOST_TIMEOUT_MS, is_host_lost, log_and_describe

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_ANSWER = 64_000  # characters at the end of a plain command's output
MAX_ANSWER_BYTES = 4 * MAX_ANSWER  # a character takes up to 4 bytes
MAX_TURNS = 50

log = logging.getLogger("corral")


def finish_turns(database: "Database", *, local: bool = False) -> list[Conversation]:
    """Finish the chat turns whose run has ended; returns their conversations.

    With `local`, only those whose run was on this machine. A chat turn that cannot be finished does
    not block the others.
    """
    finished = []
    after = ""
    while page := database.read(partial(chat_turns.list_busy, after=after)):
        for conversation in page:
            assert conversation.run_id is not None
            after = conversation.run_id
            try:
                ended = _finish_if_ended(database, conversation, local)
            except StoreUnavailable:
                raise
            except Exception as error:
                reason = log_and_describe(error)
                log.error("cannot end the chat turn of %s: %s", conversation.run_id, reason)
                continue
            if ended is not None:
                finished.append(ended)
    return finished


def _finish_if_ended(
    database: "Database", conversation: Conversation, local: bool
) -> Conversation | None:
    """Finish a chat turn if its run has ended; returns None when there is nothing to do."""
    run = _find_run(database, str(conversation.run_id))
    if run is None:
        return None if local else _finish_plain(database, conversation, None)
    if run.is_live:
        if local or run.state is not RunState.QUEUED:
            return None
        return database.write(partial(cancel_unstarted_turn, conversation=conversation, run=run))
    launch = database.read(lambda tx: runs.get_launch(tx, run.id))
    if local and process.host() not in (run.host, launch.host):
        return None
    if launch.has_session_sandbox:
        return _finish_sandboxed(database, conversation, run, launch)
    return _finish_plain(database, conversation, run)


def _find_run(database: "Database", id: str) -> Run | None:
    try:
        return database.read(lambda tx: runs.get(tx, id))
    except NotFound:
        return None


def _finish_plain(
    database: "Database", conversation: Conversation, run: Run | None
) -> Conversation | None:
    """Finish a chat turn without a sandbox.

    Returns None while the output of its run is only on another machine.
    """
    try:
        text = _read_plain_answer(database, run) if run is not None else None
    except Refused as elsewhere:
        assert run is not None
        if database.clock.now() < (run.ended_at or 0) + HOST_TIMEOUT_MS:
            return None  # the other machine stores the output when it seals it
        text = f"[{elsewhere.message}]"
    return database.write(partial(finish_turn, conversation=conversation, run=run, text=text))


def _finish_sandboxed(
    database: "Database", conversation: Conversation, run: Run, launch: Launch
) -> Conversation | None:
    """Finish a chat turn of a sandboxed agent, whose file has its messages and acknowledgements.

    Returns None while the file is on another machine that may come back, or is not readable yet.
    """
    host = launch.host or run.host
    if host not in (None, process.host()):
        return database.write(
            partial(finish_unreadable_turn, conversation=conversation, run=run, host=str(host))
        )
    result = sandbox_sync.finish_session(
        database, conversation.session_id, run, str(launch.sandbox)
    )
    if result.busy:
        return None
    return database.write(
        partial(finish_sandboxed_turn, conversation=conversation, run=run, result=result)
    )


def finish_sandboxed_turn(
    tx: Tx, conversation: Conversation, run: Run, result: sandbox_sync.SyncResult
) -> Conversation | None:
    """Finish a sandboxed chat turn: acknowledge the letters that the agent acknowledged.

    This does not depend on how the run ended. The other letters are retried, or refused when the
    run was cancelled. Returns None when another process has finished the chat turn.
    """
    ended = chat_turns.end_chat_turn(tx, conversation)
    if ended is None:
        return None
    acknowledged, rest = split_by_ack(conversation, result.acks)
    chat_turns.ack_letters(tx, msgspec.structs.replace(conversation, claimed_letters=acknowledged))
    if run.state is RunState.CANCELLED:
        left = msgspec.structs.replace(conversation, claimed_letters=rest)
        chat_turns.refuse_letters(tx, left, run.reason or "the run was stopped")
    elif rest:
        chat_turns.fail_letters(tx, rest, _explain_unacknowledged(run, result))
    elif not replies.has_sent_message(tx, conversation, run.id):
        _notify_no_answer(tx, conversation, run)
    return ended


def _explain_unacknowledged(run: Run, result: sandbox_sync.SyncResult) -> str:
    """Return why a sandboxed chat turn left letters that its agent did not acknowledge."""
    if result.error:
        return f"the file of the agent was rejected: {result.error}"
    if run.state is RunState.COMPLETED:
        return "the agent did not acknowledge the letter"
    return run.reason or f"the run ended as {run.state}"


def finish_unreadable_turn(
    tx: Tx, conversation: Conversation, run: Run, host: str
) -> Conversation | None:
    """Finish a sandboxed chat turn whose machine is lost, with the messages of its agent.

    Its letters are retried, unless the agent had answered already: that avoids a second answer.
    Returns None while the machine may come back.
    """
    if not is_host_lost(tx, host, run.ended_at or 0):
        return None
    ended = chat_turns.end_chat_turn(tx, conversation)
    if ended is None:
        return None
    if run.state is RunState.CANCELLED:
        chat_turns.refuse_letters(tx, conversation, run.reason or "the run was stopped")
    elif replies.has_sent_message(tx, conversation, run.id):
        chat_turns.ack_letters(tx, conversation)
        name = agents.get(tx, conversation.agent_id).name
        text = f"{name} was running on {host}, which is gone. Its answer may be incomplete."
        replies.send_notice(tx, conversation, run.id, text)
    else:
        chat_turns.fail_letters(
            tx, conversation.claimed_letters, f"{host}, where the agent was running, is gone"
        )
    return ended


def cancel_unstarted_turn(tx: Tx, conversation: Conversation, run: Run) -> Conversation | None:
    """Cancel a queued run whose machine is lost, and retry its letters.

    Returns None while the machine may come back.
    """
    current = runs.get(tx, run.id)
    is_waiting = current.state is RunState.QUEUED and current.host is not None
    since = max(current.created_at, current.due_at)
    if not is_waiting or not is_host_lost(tx, str(current.host), since):
        return None
    ended = chat_turns.end_chat_turn(tx, conversation)
    if ended is not None:
        reason = f"{current.host}, where the run had to start, is gone"
        runs.request_stop(tx, current.id, reason=reason)
        chat_turns.fail_letters(tx, conversation.claimed_letters, reason)
    return ended


def _notify_no_answer(tx: Tx, conversation: Conversation, run: Run) -> None:
    name = agents.get(tx, conversation.agent_id).name
    text = f"{name} ended its turn without an answer."
    replies.send_notice(tx, conversation, run.id, text)


def finish_turn(
    tx: Tx, conversation: Conversation, run: Run | None, text: str | None
) -> Conversation | None:
    """Finish a chat turn: acknowledge its letters if the run completed, and queue the answer.

    The letters are refused when the run was cancelled, otherwise retried. Returns None when another
    process has finished the chat turn.
    """
    ended = chat_turns.end_chat_turn(tx, conversation)
    if ended is None or conversation.run_id is None:
        return None
    if run is None:
        chat_turns.fail_letters(tx, conversation.claimed_letters, "the run of the turn was deleted")
    elif run.state is RunState.COMPLETED:
        _send_answer(tx, conversation, run, text)
        chat_turns.ack_letters(tx, conversation)
    elif run.state is RunState.CANCELLED:
        chat_turns.refuse_letters(tx, conversation, run.reason or "the run was stopped")
    else:
        chat_turns.fail_letters(
            tx, conversation.claimed_letters, run.reason or f"the run ended as {run.state}"
        )
    return ended


def _send_answer(tx: Tx, conversation: Conversation, run: Run, text: str | None) -> None:
    if not conversation.claimed_letters:
        return  # the run acknowledged and answered everything itself
    # A run that fetched further messages answers each of them; its last message is not an answer.
    is_late = any(claimed.late for claimed in conversation.claimed_letters)
    answer = None if is_late else text or _find_last_message(tx, run)
    if text and run.session_id is not None:
        # A plain command records no turns: its output is its message.
        with suppress(CorralError):
            sessions.append(tx, run.session_id, "assistant", text, key=f"{run.id}:answer")
    if answer:
        replies.send_answer_unless_sent(tx, conversation, run.id, answer)
        agent_mail.answer_senders(tx, conversation, run.id, answer)
    elif not replies.has_sent_message(tx, conversation, run.id):
        _notify_no_answer(tx, conversation, run)


def _find_last_message(tx: Tx, run: Run) -> str | None:
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


def _read_plain_answer(database: "Database", run: Run) -> str | None:
    """Return the output of a plain command as its answer.

    Raises Refused while the output is only on another machine.
    """
    if run.provider != "plain" or run.state is not RunState.COMPLETED:
        return None
    from corral.services.runs.outputs import read_output_tail

    try:
        text = read_output_tail(database, run.id, MAX_ANSWER_BYTES)
    except NotFound:
        return None
    # Neither engine stores NUL characters.
    answer = text.decode(errors="replace").replace("\0", "")
    return answer.strip()[-MAX_ANSWER:] or None
