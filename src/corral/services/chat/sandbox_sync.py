"""Synchronization of a sandboxed session with its two files.

The host's file is a view of the store and can be written any number of times. The agent's file is
not trusted; `domain/sandbox_bridge/ingest.py` ingests each of its messages once. There is no other
state, so the next synchronization repairs whatever a crash left.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters.channels.contract import StoredFile
from corral.adapters.sandbox_bridge.rows import (
    DeliveryOutcome,
    InboundView,
    OutboundRow,
    OutboundSnapshot,
    ViewState,
)
from corral.adapters.sandbox_bridge.schema import OUTBOX, SessionFolder
from corral.domain.chat.conversations import ops as conversations
from corral.domain.runs.model import Run
from corral.domain.sandbox_bridge import ingest
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.kernel.clock import MINUTE
from corral.kernel.errors import CorralError, Refused
from corral.services.chat.session_folder import (
    compute_store_mark,
    copy_attachments,
    get_session_folder,
)
from corral.services.chat.session_sandbox import repair_outbound, write_command

if TYPE_CHECKING:
    from corral.db.database import Database

NO_MESSAGES = 1 << 60
"""Above the number of any message, so that only the state of the session is read."""
BUSY_MS = MINUTE
"""How long after the end of its run a file may be locked before it is rejected."""


class SyncResult(msgspec.Struct, frozen=True):
    """The result of one synchronization."""

    acks: dict[str, str]
    """The agent's status of each message by its id."""
    ingested: int = 0
    """Ingested messages of the agent."""
    refused: int = 0
    error: str | None = None
    """Why the agent's file was rejected and moved aside."""
    busy: bool = False
    """Whether the file is locked; synchronize again."""


# -- start of a run -------------------------------------------------------------------------------


def prepare_session(database: "Database", session: str) -> SessionFolder:
    """Create or repair the files of a session: its letters, and their attachments. Idempotent.

    Raises Refused when the host's file is locked.
    """
    from corral.adapters.sandbox_bridge import outbound

    folder = get_session_folder(session)
    for path in (folder.top, folder.inside, folder.outside, folder.home):
        config.make_private_folder(Path(path))
    config.write_private_file(Path(folder.mark), compute_store_mark(database))
    copy_attachments(database, session, folder)
    view = database.read(lambda tx: sandbox_bridge.build_view(tx, session, folder))
    conversation = database.read(lambda tx: conversations.find_conversation(tx, session))
    if conversation is not None and conversation.run_id is not None:
        outbound.begin_turn(folder, conversation.run_id)
    ingested_seq = conversation.ingested_seq if conversation is not None else 0
    shown = _write_inbound(database, folder, msgspec.structs.replace(view, above=ingested_seq))
    if shown is None:
        raise Refused(f"Cannot write the letters: {folder.inbound} is locked.")
    if shown.rebuilt:
        _mark_unknown_outcomes(database, folder, shown, ingested_seq)
    _update_inbound(database, session, folder)
    write_command(folder)
    return folder


def _write_inbound(
    database: "Database", folder: SessionFolder, view: InboundView
) -> ViewState | None:
    from corral.adapters.sandbox_bridge import inbound

    return inbound.write_view(folder, view, database.clock.now())


def _mark_unknown_outcomes(
    database: "Database", folder: SessionFolder, shown: ViewState, ingested_seq: int
) -> None:
    """Report the outcomes of old messages as unknown, after the host's file was rebuilt."""
    snapshot = _try_read(folder, ingested_seq, shown.largest)
    if snapshot is not None:
        now = database.clock.now()
        lost = [DeliveryOutcome(id, None, "unknown", now) for id in sorted(snapshot.old)]
        _write_inbound(database, folder, InboundView(outcomes=lost))


# -- synchronization ------------------------------------------------------------------------------


def sync_session(database: "Database", session: str, run: Run) -> SyncResult:
    """Ingest the new messages of the agent, and update the host's file. Idempotent.

    The host's file has outcomes, current destinations and answers to questions. Messages of a run
    whose turn has ended are ignored.
    """
    from corral.adapters.sandbox_bridge import outbound

    folder = get_session_folder(session)
    conversation = database.read(lambda tx: conversations.find_conversation(tx, session))
    if conversation is not None and conversation.run_id != run.id:
        return SyncResult({})
    shown = _update_inbound(database, session, folder)
    ingested_seq = conversation.ingested_seq if conversation is not None else 0
    try:
        snapshot = outbound.read_snapshot(
            folder, ingested_seq=ingested_seq, above=shown.largest if shown else 0
        )
    except (outbound.FileBusy, outbound.HotJournal):
        return SyncResult({}, busy=True)
    except outbound.InvalidFile as error:
        return SyncResult({}, error=str(error))
    result = _ingest_snapshot(database, session, run, snapshot, shown)
    if result.ingested or result.refused:
        _update_inbound(database, session, folder)
    return result


def _try_read(folder: SessionFolder, ingested_seq: int, above: int = 0) -> OutboundSnapshot | None:
    """Read the agent's file; returns None when it is locked or invalid."""
    from corral.adapters.sandbox_bridge import outbound

    try:
        return outbound.read_snapshot(folder, ingested_seq=ingested_seq, above=above)
    except (outbound.FileBusy, outbound.HotJournal, outbound.InvalidFile):
        return None


def _ingest_snapshot(
    database: "Database",
    session: str,
    run: Run,
    snapshot: OutboundSnapshot,
    shown: ViewState | None,
) -> SyncResult:
    ingested = refused = 0
    reject = partial(ingest.reject_message, session=session, run_id=run.id)
    for row in snapshot.rows:
        try:
            files = _copy_outbound_files(database, session, run, row)
            ingested += database.write(
                partial(ingest.ingest_message, session=session, run=run, row=row, files=files)
            )
        except CorralError as error:
            refused += database.write(
                partial(reject, row=row, reason=error.message, notify=not refused)
            )
    for id, reason in [
        *snapshot.invalid,
        *_find_reused_numbers(database, session, snapshot, shown),
    ]:
        if shown is None or id not in shown.known:
            refused += database.write(partial(reject, row=id, reason=reason, notify=not refused))
    if any(id.startswith("qst_") for id in snapshot.acks):
        database.write(lambda tx: sandbox_bridge.acknowledge_answers(tx, run, snapshot.acks))
    return SyncResult(snapshot.acks, ingested, refused)


def _copy_outbound_files(
    database: "Database", session: str, run: Run, row: OutboundRow
) -> list[StoredFile]:
    """Copy the files of a message from its folder in the outbox into private files."""
    names = ingest.list_files(row)
    if not names:
        return []
    from corral.services.chat import attachments

    outbox = os.path.join(OUTBOX, row.id)
    return attachments.copy_files(
        database,
        [os.path.join(outbox, name) for name in names],
        [get_session_folder(session).outside],
        str(run.agent_id),
    )


def _find_reused_numbers(
    database: "Database", session: str, snapshot: OutboundSnapshot, shown: ViewState | None
) -> list[tuple[str, str]]:
    """Return unknown messages whose number was used before."""
    if shown is None:
        return []
    recorded = database.read(lambda tx: sandbox_bridge.collect_outcomes(tx, session))
    known = shown.known | recorded.pending
    known |= {outcome.message_out_id for outcome in recorded.outcomes}
    return [(id, "its number was used before") for id in sorted(snapshot.old - known)]


def _update_inbound(database: "Database", session: str, folder: SessionFolder) -> ViewState | None:
    """Write the current outcomes, answers and destinations into the host's file."""
    conversation = database.read(lambda tx: conversations.find_conversation(tx, session))
    if conversation is None or not os.path.isdir(folder.inside):
        return None
    recorded = database.read(lambda tx: sandbox_bridge.collect_outcomes(tx, session))
    view = database.read(lambda tx: sandbox_bridge.build_addresses(tx, conversation))
    view = msgspec.structs.replace(
        view, rows=recorded.answers, outcomes=recorded.outcomes, above=conversation.ingested_seq
    )
    shown = _write_inbound(database, folder, view)
    if shown is not None and recorded.outcomes:
        ids = [outcome.message_out_id for outcome in recorded.outcomes]
        database.write(lambda tx: sandbox_bridge.delete_outcomes(tx, session, ids))
    return shown


# -- end of a run ---------------------------------------------------------------------------------


def finish_session(database: "Database", session: str, run: Run, sandbox_kind: str) -> SyncResult:
    """Synchronize for the last time after a run has ended. Idempotent.

    A corrupt file is moved aside, and the session is notified.
    """
    folder = get_session_folder(session)
    result = sync_session(database, session, run)
    if result.busy:
        repair_outbound(folder, sandbox_kind, database.address)
        result = sync_session(database, session, run)
    now = database.clock.now()
    if result.busy and (run.ended_at or 0) + BUSY_MS < now:
        result = SyncResult({}, error="it is locked or cannot be repaired")
    if result.busy:
        return result
    from corral.adapters.sandbox_bridge import outbound

    outbound.end_turn(folder)
    if result.error is not None:
        reason = result.error
        database.write(lambda tx: ingest.reject_file(tx, session, reason))
        outbound.quarantine(folder)
        return result
    ended = {id: status for id, status in result.acks.items() if status == "completed"}
    _write_inbound(database, folder, InboundView(ended=ended))
    _store_state(database, session, folder)
    return result


def _store_state(database: "Database", session: str, folder: SessionFolder) -> None:
    """Store the state that the agent saved in its file, if the file is readable."""
    snapshot = _try_read(folder, NO_MESSAGES)
    if snapshot is not None and snapshot.state:
        database.write(lambda tx: sandbox_bridge.save_state(tx, session, snapshot.state))
