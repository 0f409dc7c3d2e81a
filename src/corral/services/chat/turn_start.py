"""The start of chat turns: the letters of a session become the prompt of a run.

One transaction claims the letters and queues the run. After a crash, the session still records
which run has its letters, so any process can end the chat turn (`turn_finish`).
"""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral import config
from corral.adapters.processes import process
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat.conversations import chat_turns, letter_batch, prompts
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.model import Conversation
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.sandbox_bridge.letters import with_sandbox_paths
from corral.domain.sessions import ops as sessions
from corral.domain.settings import ops as settings
from corral.kernel.errors import Refused, StoreUnavailable
from corral.services.chat.session_folder import get_session_folder
from corral.services.chat.turns import is_host_lost, log_and_describe
from corral.services.runs import request, resumption

if TYPE_CHECKING:
    from corral.db.database import Database

log = logging.getLogger("corral")


def start_turns(database: "Database") -> list[Run]:
    """Start a chat turn for each session with due letters, oldest first; returns the queued runs.

    Respects the limit of concurrent chat turns. A session that cannot be started does not block the
    others.
    """
    started = []
    for conversation in database.read(letter_batch.list_due_conversations):
        try:
            run = _try_start(database, conversation)
        except StoreUnavailable:
            raise
        except Exception as error:
            reason = log_and_describe(error)
            log.error("cannot start a turn of session %s: %s", conversation.session_id, reason)
            continue
        if run is not None:
            started.append(run)
    return started


def _try_start(database: "Database", conversation: Conversation) -> Run | None:
    try:
        folder = database.read(partial(_find_workspace, conversation=conversation))
        if folder is not None:
            _make_workspace(folder)
        return database.write(partial(start_turn, session=conversation.session_id, folder=folder))
    except StoreUnavailable:
        raise
    except Exception as error:
        # Counts as a failed attempt. Poison messages that trigger a bug of the program become dead
        # letters too, instead of blocking every session.
        fail = partial(fail_start, session=conversation.session_id, reason=log_and_describe(error))
        database.write(fail)
        return None


def _find_workspace(tx: Tx, conversation: Conversation) -> str | None:
    """Return the private folder of an agent that has no project and no workspace.

    Returns None when the agent has either.
    """
    session = sessions.get(tx, conversation.session_id)
    agent = agents.get(tx, conversation.agent_id)
    if session.project_id is not None or agent.workspace is not None:
        return None
    return str(config.home() / "workspaces" / agent.id)


def _make_workspace(folder: str) -> None:
    try:
        config.make_private_folder(Path(folder))
    except OSError as error:
        raise Refused(
            f"Cannot create the directory {folder}: {error.strerror}. Fix that, or give the agent "
            "a workspace.",
            folder=folder,
            reason="folder_not_created",
        ) from None


def start_turn(tx: Tx, session: str, folder: str | None) -> Run | None:
    """Claim the letters of a session and queue a run for them, in one transaction.

    Returns None when there are no letters, the limit of concurrent chat turns is reached, or a run
    is live in the session.
    """
    tx.serialize("chat")
    if chat_turns.count_busy(tx) >= int(settings.get_value(tx, "chat.max_concurrent")):
        return None
    conversation = conversations.find_conversation(tx, session)
    if conversation is None or conversation.run_id is not None or _has_live_run(tx, session):
        return None
    letters = letter_batch.claim_batch(tx, conversation)
    if not letters:
        return None
    sandbox = sandbox_bridge.select_sandbox(tx, conversation)
    if sandbox != "none":
        letters = with_sandbox_paths(letters, get_session_folder(session))
    prompt = prompts.build_prompt(tx, conversation, letters)
    run_request = request.RunRequest(
        prompt=prompt.text,
        recorded_turns=prompt.turns,
        title=prompt.title,
        dir=folder,
        sandbox=sandbox,
        host=_replace_lost_host(tx, session),
    )
    run = resumption.resume_run(tx, session, run_request)
    chat_turns.begin_chat_turn(tx, conversation, run.id, letters)
    return run


def _has_live_run(tx: Tx, session: str) -> bool:
    """Whether a run is live in this session, such as one that a person started."""
    latest = runs.list_runs(tx, session=session, limit=1).items
    return bool(latest) and latest[0].is_live


def _replace_lost_host(tx: Tx, session: str) -> str | None:
    """Return this machine if the machine of a session is lost; clear the provider's session id.

    Returns None when the session stays on its machine. The provider's own conversation was on the
    lost machine, so the next prompt repeats the conversation.
    """
    latest = runs.list_runs(tx, session=session, limit=1).items
    if not latest:
        return None
    previous = latest[0]
    host = runs.get_launch(tx, previous.id).host or previous.host
    # A run that never started was ended because its machine was considered lost.
    last_seen = previous.ended_at if previous.started_at is not None else previous.created_at
    if host is None or not is_host_lost(tx, host, last_seen or 0):
        return None
    record = sessions.get(tx, session)
    if record.provider is not None and record.provider_session is not None:
        sessions.set_provider_session(tx, record, record.provider, None)
    return process.host()


def fail_start(tx: Tx, session: str, reason: str) -> None:
    """Record a failed start: the letters are retried later, or become dead letters."""
    conversation = conversations.find_conversation(tx, session)
    if conversation is not None and conversation.run_id is None:
        chat_turns.fail_letters(tx, letter_batch.claim_batch(tx, conversation), reason)
