"""Files that agents send: the folders that they may come from, and one message for each file."""

import msgspec

from corral.adapters.channels.contract import MessageKind, StoredFile
from corral.adapters.channels.registry import get_traits
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.model import Message
from corral.domain.chat.outbound import queue, targets
from corral.domain.chat.outbound.queue import MessageDraft
from corral.domain.projects import ops as projects
from corral.domain.runs import ops as runs
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Refused
from corral.kernel.validation import MAX_BODY, MAX_NAME, check_text

MAX_FILES = 10
"""Files of one call."""


def list_folders(tx: Tx, agent: str, session: str | None, run: str | None) -> tuple[str, list[str]]:
    """Return an agent's id and the folders that it may send files from.

    These are the folders of the run, of the session's project and of the agent itself. A run or a
    session of another agent is ignored.
    """
    owner = agents.get(tx, agent)
    folders: list[str | None] = []
    if run is not None:
        current_run = runs.get(tx, run)
        folders += [current_run.cwd] if current_run.agent_id == owner.id else []
    if session is not None:
        own_session = sessions.get(tx, session)
        if own_session.agent_id == owner.id:
            latest = runs.list_runs(tx, session=own_session.id, limit=1).items
            folders += [latest_run.cwd for latest_run in latest if latest_run.agent_id == owner.id]
            folders += (
                [projects.get(tx, own_session.project_id).dir] if own_session.project_id else []
            )
    folders.append(owner.workspace)
    return owner.id, [*dict.fromkeys(folder for folder in folders if folder)]


def send(
    tx: Tx,
    files: list[StoredFile],
    *,
    agent: str,
    text: str = "",
    to: str | None = None,
    thread: str | None = None,
    session: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Queue stored files, each as a message of its own, after the text. Idempotent by `key`.

    `thread` defaults to the thread of the session's reply address.
    """
    sender = agents.get(tx, agent)
    address = targets.resolve_target(tx, sender.id, to, session)
    place = address.place
    thread = targets.check_thread(tx, place, thread) or address.thread
    channel = sql.CHANNELS.get(tx, place.channel_id)
    if not get_traits(channel.kind).files:
        raise Refused(
            f"{place.display_name} is on a channel of kind {channel.kind}, which cannot take "
            "files. Send their content as text.",
            to=place.id,
            reason="files_unsupported",
        )
    base = (
        f"{sender.id}:{check_text(key, 'The key', max_bytes=2 * MAX_NAME)}"
        if key
        else tx.new_id("key")
    )
    draft = MessageDraft(
        text,
        agent_id=sender.id,
        thread=thread,
        run_id=run,
        sender=f"session:{session}" if session else f"agent:{sender.name}",
        key=base,
    )
    messages: list[Message] = []
    if text:
        check_text(text, "The text", max_bytes=MAX_BODY)
        messages += queue.enqueue(tx, place, draft)
    for number, file in enumerate(files, 1):
        file_draft = draft._replace(
            text=file.name,
            kind=MessageKind.FILE,
            data={"file": msgspec.to_builtins(file)},
            key=f"{base}:file{number}",
        )
        messages += queue.enqueue(tx, place, file_draft)
    return messages
