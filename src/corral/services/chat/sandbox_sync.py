"""Synchronization of a sandboxed session with its two files.

The host's file is a view of the store and can be written any number of times. The agent's file is
not trusted; `domain/sandbox_bridge/ingest.py` ingests each of its messages once. There is no other
state, so the next synchronization repairs whatever a crash left.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.adapters import sandbox
from corral.adapters.channels.contract import StoredFile
from corral.adapters.sandbox import ResourceLimits, SandboxBounds, SandboxKind, WrappedCommand
from corral.adapters.sandbox_bridge.rows import (
    DeliveryOutcome,
    InboundView,
    OutboundRow,
    OutboundSnapshot,
    ViewState,
)
from corral.adapters.sandbox_bridge.schema import OUTBOX, SessionFolder
from corral.domain.chat.conversations import turns
from corral.domain.chat.payloads import parse_chat
from corral.domain.runs.model import Run
from corral.domain.runs.spec import BOXED_PREFIX
from corral.domain.sandbox_bridge import ingest, letters
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.sessions import ops as sessions
from corral.kernel.clock import MINUTE
from corral.kernel.errors import CorralError, Invalid, NotFound, Refused
from corral.kernel.open_files import require_unused

if TYPE_CHECKING:
    from corral.adapters.providers.provider import LaunchCommand
    from corral.db.database import Database

AGENT_CLIENT = "corral.adapters.sandbox_bridge.agent_client"
REPAIR_SECONDS = 20
MAX_PROCESSES = 512  # concurrent processes of a sandboxed agent
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


def session_folder(session: str) -> SessionFolder:
    """Return the folder of a session's files, on the machine that runs it."""
    return SessionFolder(str(config.home() / "sandboxes" / session))


# -- start of a run -------------------------------------------------------------------------------


def prepare_session(database: "Database", session: str) -> SessionFolder:
    """Create or repair the files of a session: its letters, and their attachments. Idempotent.

    Raises Refused when the host's file is locked.
    """
    from corral.adapters.sandbox_bridge import outbound

    folder = session_folder(session)
    for path in (folder.top, folder.inside, folder.outside, folder.home):
        config.make_private_folder(Path(path))
    config.write_private_file(Path(folder.mark), store_mark(database))
    _copy_attachments(database, session, folder)
    view = database.read(lambda tx: sandbox_bridge.build_view(tx, session, folder))
    conversation = database.read(lambda tx: turns.find_conversation(tx, session))
    if conversation is not None and conversation.run_id is not None:
        outbound.begin_turn(folder, conversation.run_id)
    ingested_seq = conversation.ingested_seq if conversation is not None else 0
    shown = _write_inbound(database, folder, msgspec.structs.replace(view, above=ingested_seq))
    if shown is None:
        raise Refused(f"Cannot write the letters: {folder.inbound} is locked.")
    if shown.rebuilt:
        _mark_unknown_outcomes(database, folder, shown, ingested_seq)
    _update_inbound(database, session, folder)
    _write_command(folder)
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
    snapshot = _read(folder, ingested_seq, shown.largest)
    if isinstance(snapshot, OutboundSnapshot):
        now = database.clock.now()
        lost = [DeliveryOutcome(id, None, "unknown", now) for id in sorted(snapshot.old)]
        _write_inbound(database, folder, InboundView(outcomes=lost))


def _copy_attachments(database: "Database", session: str, folder: SessionFolder) -> None:
    """Copy the attachments of the letters into the folder that the agent can read."""
    inbox = os.path.join(folder.inside, "inbox")
    shutil.rmtree(inbox, ignore_errors=True)
    for letter in database.read(lambda tx: sandbox_bridge.list_letters(tx, session)):
        chat = parse_chat(letter)
        for number, file in enumerate(chat.files if chat is not None else [], 1):
            if file.get("path") is not None:
                target = Path(letters.sandbox_path(folder, letter, number, file))
                config.make_private_folder(target.parent)
                try:
                    require_unused(str(file["path"]), follow=False)
                    shutil.copyfile(str(file["path"]), target, follow_symlinks=False)
                except OSError:
                    continue  # deleted by retention; the letter still mentions it


def _write_command(folder: SessionFolder) -> None:
    """Write the `corral` command of the sandbox."""
    path = Path(folder.inside) / "bin" / "corral"
    config.make_private_folder(path.parent)
    config.write_private_file(
        path, f'#!/bin/sh\nexec "{sys.executable}" -P -m {AGENT_CLIENT} "$@"\n'
    )
    path.chmod(0o700)


def store_mark(database: "Database") -> str:
    """Return the mark of the folders of this store; several stores may share a home."""
    return sha256(database.address.encode()).hexdigest()


def find_orphaned_folders(database: "Database") -> Iterator[Path]:
    """Yield the folders of sessions that this store has deleted."""
    mark = store_mark(database)
    for path in sorted((config.home() / "sandboxes").glob("ses_*")):
        try:
            own = Path(SessionFolder(str(path)).mark).read_text(encoding="utf-8") == mark
            database.read(partial(sessions.get, session=path.name))
        except (OSError, Invalid):
            continue  # not known to be a folder of this store
        except NotFound:
            if own:
                yield path


def remove_orphaned_folders(database: "Database") -> int:
    """Remove the folders of deleted sessions; returns their number."""
    removed = 0
    for path in find_orphaned_folders(database):
        _make_accessible(path)
        shutil.rmtree(path, ignore_errors=True)
        removed += not path.exists()
    return removed


def _make_accessible(path: Path) -> None:
    """Restore the permissions of folders, which the agent may have removed."""
    for top, folders, _ in os.walk(path):
        for name in folders:
            with suppress(OSError):
                inner = os.path.join(top, name)
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700, follow_symlinks=False)


# -- the sandbox ----------------------------------------------------------------------------------


def wrap_command(
    command: Sequence[str],
    folder: SessionFolder,
    *,
    by: str,
    work: str | None,
    store: str,
    programs: Sequence[str] = (),
    reads: Sequence[str] = (),
    scratch: str,
) -> WrappedCommand:
    """Return a command that runs inside the sandbox of a session.

    The sandbox has no network. It can read the system's programs and the session's files, and write
    only its working directory and its own files. Raises Refused when no sandbox on this machine
    guarantees that, unless `by` is `none`.
    """
    kind = _kind(by)
    own = {folder.outside, folder.home} | ({work} if work is not None else set())
    hidden = [str(config.home()), *_store_files(store)]
    inner = [path for path in (*hidden, folder.top) if work is not None and _is_in(path, work)]
    if kind is SandboxKind.LANDLOCK and inner:
        raise Refused(
            f"Landlock cannot protect {inner[0]}, which is inside the working directory. Install "
            "bubblewrap, or use another working directory.",
            path=inner[0],
        )
    readable = [*_programs(programs), *reads, folder.inside]
    return sandbox.wrap_command(
        command,
        SandboxBounds(
            writable=tuple(sorted(own)),
            readable=tuple(dict.fromkeys(path for path in readable if os.path.exists(path))),
            hidden=tuple(path for path in inner if path != folder.top),
            network=False,
            limits=ResourceLimits(processes=MAX_PROCESSES),
        ),
        scratch=scratch,
        kind=kind,
    )


def _kind(by: str) -> SandboxKind:
    if by != "auto":
        return SandboxKind(by)
    probe = sandbox.probe_sandboxes(network=False)
    if probe.kind is SandboxKind.NONE or not sandbox.can_block_network(probe.kind):
        problems = probe.why_not | {probe.kind: "it does not block the network"}
        reasons = "; ".join(f"{kind}: {reason}" for kind, reason in problems.items())
        raise Refused(
            f"The agent requires a sandbox, and none works here ({reasons}). Install bubblewrap, "
            "or run the agent without one: `corral setting set chat.sandbox none`."
        )
    return probe.kind


def _programs(command: Sequence[str]) -> list[str]:
    """Return the paths of the programs and scripts of a command, with their link targets."""
    first = shutil.which(command[0]) if command else None
    named = [word for word in command if os.path.isabs(word) and os.path.isfile(word)]
    paths = [path for path in (first, *named) if path is not None]
    return [name for path in paths for name in (path, os.path.realpath(path))]


def _store_files(store: str) -> list[str]:
    """Return the files of a SQLite store, which the sandbox must hide."""
    if not store.startswith("sqlite"):
        return []
    path = Path("/" + store.partition("://")[2].lstrip("/"))
    return [str(file) for file in sorted(path.parent.glob(f"{path.name}*"))]


def _is_in(path: str, folder: str) -> bool:
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((real, top)) == top


# -- synchronization ------------------------------------------------------------------------------


def sync(database: "Database", session: str, run: Run) -> SyncResult:
    """Ingest the new messages of the agent, and update the host's file. Idempotent.

    The host's file has outcomes, current destinations and answers to questions. Messages of a run
    whose turn has ended are ignored.
    """
    folder = session_folder(session)
    conversation = database.read(lambda tx: turns.find_conversation(tx, session))
    if conversation is not None and conversation.run_id != run.id:
        return SyncResult({})
    shown = _update_inbound(database, session, folder)
    ingested_seq = conversation.ingested_seq if conversation is not None else 0
    snapshot = _read(folder, ingested_seq, shown.largest if shown else 0)
    if isinstance(snapshot, SyncResult):
        return snapshot
    result = _ingest(database, session, run, snapshot, shown)
    if result.ingested or result.refused:
        _update_inbound(database, session, folder)
    return result


def _read(folder: SessionFolder, ingested_seq: int, above: int) -> OutboundSnapshot | SyncResult:
    from corral.adapters.sandbox_bridge import outbound

    try:
        return outbound.read_snapshot(folder, ingested_seq=ingested_seq, above=above)
    except (outbound.FileBusy, outbound.HotJournal):
        return SyncResult({}, busy=True)
    except outbound.InvalidFile as error:
        return SyncResult({}, error=str(error))


def _ingest(
    database: "Database",
    session: str,
    run: Run,
    snapshot: OutboundSnapshot,
    shown: ViewState | None,
) -> SyncResult:
    ingested = refused = 0
    refuse = partial(ingest.reject_message, session=session, run_id=run.id)
    for row in snapshot.rows:
        try:
            files = _copy_outbound_files(database, session, run, row)
            take = partial(ingest.ingest_message, session=session, run=run, row=row, files=files)
            ingested += database.write(take)
        except CorralError as error:
            reject = partial(refuse, row=row, reason=error.message, tell=not refused)
            refused += database.write(reject)
    for id, reason in [*snapshot.invalid, *_reused_numbers(database, session, snapshot, shown)]:
        if shown is None or id not in shown.known:
            reject = partial(refuse, row=id, reason=reason, tell=not refused)
            refused += database.write(reject)
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
        [session_folder(session).outside],
        str(run.agent_id),
    )


def _reused_numbers(
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
    conversation = database.read(lambda tx: turns.find_conversation(tx, session))
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


def finish_session(database: "Database", session: str, run: Run, sandbox_by: str) -> SyncResult:
    """Synchronize for the last time after a run has ended. Idempotent.

    A corrupt file is moved aside, and the session is notified.
    """
    folder = session_folder(session)
    result = sync(database, session, run)
    if result.busy:
        _repair(folder, sandbox_by, database)
        result = sync(database, session, run)
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
    snapshot = _read(folder, 1 << 60, 0)
    if isinstance(snapshot, OutboundSnapshot) and snapshot.state:
        database.write(lambda tx: sandbox_bridge.save_state(tx, session, snapshot.state))


def _repair(folder: SessionFolder, by: str, database: "Database") -> None:
    """Roll back an interrupted transaction in the agent's file.

    Runs inside the sandbox, because opening an untrusted database can be exploited.
    """
    command = [sys.executable, "-P", "-m", AGENT_CLIENT, "repair", folder.outbound]
    try:
        wrapped = wrap_command(
            command,
            folder,
            by=by.removeprefix(BOXED_PREFIX),
            work=None,
            store=database.address,
            scratch=os.path.join(folder.top, "scratch"),
        )
        subprocess.run(
            wrapped.words,
            env=agent_environment(folder) | wrapped.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=REPAIR_SECONDS,
            check=False,
        )
    except (CorralError, OSError, subprocess.TimeoutExpired):
        return  # the next read reports that the file is not readable


def agent_environment(folder: SessionFolder) -> dict[str, str]:
    """Return the environment of a sandboxed agent: few variables of the host, and its paths."""
    inherited = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM")
    own = {name: os.environ[name] for name in inherited if name in os.environ}
    paths = [os.path.join(folder.inside, "bin"), os.path.dirname(sys.executable)]
    package = str(Path(config.__file__).parent.parent)
    return own | {
        "PATH": os.pathsep.join([*paths, os.environ.get("PATH", os.defpath)]),
        "HOME": folder.home,
        "PYTHONPATH": package,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CORRAL_BOXED": folder.top,
        "CORRAL_AGENT_HOME": folder.home,
    }


def write_start_file(folder: SessionFolder, started: "LaunchCommand", provider: str) -> str:
    """Write the file with the start parameters of the agent for the sandbox; returns its path."""
    path = Path(folder.inside) / "order.json"
    content = {
        "top": folder.top,
        "args": started.args,
        "stdin": started.stdin,
        "env": started.env,
        "provider": provider,
    }
    config.write_private_file(path, json.dumps(content))
    return str(path)
