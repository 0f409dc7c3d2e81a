"""Files that agents send: the folders that they may lie in, and a message for each."""

from functools import partial

import msgspec

from corral.adapters.channels.contract import File, Kind
from corral.adapters.channels.registry import traits_of
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.model import Message
from corral.domain.chat.outbound import queue as outbound_queue
from corral.domain.projects import ops as projects
from corral.domain.runs import ops as runs
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Refused
from corral.kernel.text import MAX_BODY, MAX_NAME, clean_text

MOST_FILES = 10
"""That are sent at once."""


def folders(tx: Tx, agent: str, session: str | None, run: str | None) -> tuple[str, list[str]]:
    """An agent's id, and the folders that it works in: where the run is, the session's project, its
    own folder. What is said to be another agent's does not count."""
    whose = agents.get(tx, agent)
    found: list[str | None] = []
    if run is not None:
        given = runs.get(tx, run)
        found += [given.cwd] if given.agent_id == whose.id else []
    if session is not None:
        kept = sessions.get(tx, session)
        if kept.agent_id == whose.id:
            latest = runs.list_runs(tx, session=kept.id, limit=1).items
            found += [each.cwd for each in latest if each.agent_id == whose.id]
            found += [projects.get(tx, kept.project_id).dir] if kept.project_id else []
    found.append(whose.workspace)
    return whose.id, [*dict.fromkeys(each for each in found if each)]


def send(
    tx: Tx,
    files: list[File],
    *,
    agent: str,
    text: str = "",
    to: str | None = None,
    session: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Queue files that were kept, each as a message of its own, behind what is said of them."""
    return send_in_thread(
        tx, files, agent=agent, text=text, to=to, session=session, run=run, key=key
    )


def send_in_thread(
    tx: Tx,
    files: list[File],
    *,
    agent: str,
    text: str = "",
    to: str | None = None,
    thread: str | None = None,
    session: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> list[Message]:
    """Send into a named thread; None: the thread in which the session is answered."""
    whose = agents.get(tx, agent)
    place, answered = outbound_queue.where_to(tx, whose.id, to, session)
    thread = outbound_queue.check_thread(tx, place, thread) or answered
    channel = sql.CHANNELS.get(tx, place.channel_id)
    if not traits_of(channel.kind).files:
        raise Refused(
            f"{place.called} is on a channel of kind {channel.kind}, which takes no files; "
            "say what is in it instead.",
            to=place.id,
            reason="files_unsupported",
        )
    own = f"{whose.id}:{clean_text(key, 'The key', most=2 * MAX_NAME)}" if key else tx.new_id("key")
    sender = f"session:{session}" if session else f"agent:{whose.name}"
    queue = partial(
        outbound_queue.queue, tx, place, agent_id=whose.id, thread=thread, run_id=run, sender=sender
    )
    made: list[Message] = []
    if text:
        words = clean_text(text, "The text", most=MAX_BODY)
        made += queue(words, key=own)
    for number, file in enumerate(files, 1):
        kept = {"file": msgspec.to_builtins(file)}
        made += queue(file.name, kind=Kind.FILE, data=kept, key=f"{own}:file{number}")
    return made
