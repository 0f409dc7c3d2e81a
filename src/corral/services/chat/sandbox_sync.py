"""What passes between the store and the two files of a boxed session.

The host's file is a picture of the store and is shown as often as one likes; the agent's file is
not trusted, and `domain/sandbox_bridge/ingest.py` ingests each of its messages once. No other state
exists between the two, so the next synchronization repairs whatever a crash left.
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

import corral
from corral import config
from corral.adapters import sandbox
from corral.adapters.channels.contract import File
from corral.adapters.sandbox import Bounds, Kind, ResourceLimits, Wrapped
from corral.adapters.sandbox_bridge.rows import Out, Outcome, Picture, Shown, Snapshot
from corral.adapters.sandbox_bridge.schema import OUTBOX, Folder
from corral.domain.chat.conversations import turns
from corral.domain.chat.conversations.payloads import chat_of
from corral.domain.runs.model import Run
from corral.domain.runs.spec import BOXED
from corral.domain.sandbox_bridge import ingest, letters
from corral.domain.sandbox_bridge import ops as boxes
from corral.domain.sessions import ops as sessions
from corral.kernel.clock import MINUTE
from corral.kernel.errors import CorralError, Invalid, NotFound, Refused
from corral.kernel.open_files import require_unused

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Start
    from corral.db.database import Database

INSIDE = "corral.adapters.sandbox_bridge.agent_client"
MEND_SECONDS = 20
PROCESSES = 512  # that a boxed agent may have at once
BUSY_MS = MINUTE
"""How long a file may be held by somebody after its run is over."""


class Looked(msgspec.Struct, frozen=True):
    """What a look at a session's files found."""

    acks: dict[str, str]
    """How far the agent says that it is with each message."""
    taken: int = 0
    """How many of its own messages were taken over."""
    refused: int = 0
    trouble: str | None = None
    """Why its file is not believed, and was put aside."""
    busy: bool = False
    """Whether it could not be read now; look again."""


def folder_of(session: str) -> Folder:
    """Where a session's files are; they are there on the machine that runs it."""
    return Folder(str(config.home() / "boxed" / session))


# -- the beginning of a run -----------------------------------------------------------------------


def prepare(database: "Database", session: str) -> Folder:
    """Have everything there that a boxed agent is given: its letters, as a file, and the files
    that came with them. Whatever was there before is made right."""
    from corral.adapters.sandbox_bridge import outbound

    folder = folder_of(session)
    for path in (folder.top, folder.inside, folder.outside, folder.home):
        config.make_private_folder(Path(path))
    config.write_private_file(Path(folder.mark), mark_of(database))
    _hand_over_files(database, session, folder)
    picture = database.read(lambda tx: boxes.picture(tx, session, folder))
    talk = database.read(lambda tx: turns.talk_of(tx, session))
    if talk is not None and talk.run_id is not None:
        outbound.begin_turn(folder, talk.run_id)
    taken = talk.taken if talk is not None else 0
    shown = _show(database, folder, msgspec.structs.replace(picture, above=taken))
    if shown is None:
        raise Refused(f"{folder.inbound} is held by somebody; the letters could not be written.")
    if shown.rebuilt:
        _own_up(database, folder, shown, taken)
    _tell(database, session, folder)
    _write_command(folder)
    return folder


def _show(database: "Database", folder: Folder, picture: Picture) -> Shown | None:
    from corral.adapters.sandbox_bridge import inbound

    return inbound.show(folder, picture, database.clock.now())


def _own_up(database: "Database", folder: Folder, shown: Shown, taken: int) -> None:
    """The file is new, and the agent's is not: of its old messages nobody can say here any more
    what became of them."""
    found = _read(folder, taken, shown.largest)
    if isinstance(found, Snapshot):
        now = database.clock.now()
        lost = [Outcome(id, None, "unknown", now) for id in sorted(found.old)]
        _show(database, folder, Picture(outcomes=lost))


def _hand_over_files(database: "Database", session: str, folder: Folder) -> None:
    """Copy what came with the messages to where the agent can read it."""
    inbox = os.path.join(folder.inside, "inbox")
    shutil.rmtree(inbox, ignore_errors=True)
    for letter in database.read(lambda tx: boxes.letters_of(tx, session)):
        chat = chat_of(letter)
        for number, file in enumerate(chat.files if chat is not None else [], 1):
            if file.get("path") is not None:
                target = Path(letters.place_of(folder, letter, number, file))
                config.make_private_folder(target.parent)
                try:
                    require_unused(str(file["path"]), follow=False)
                    shutil.copyfile(str(file["path"]), target, follow_symlinks=False)
                except OSError:
                    continue  # it was cleared away; the letter says that there was one


def _write_command(folder: Folder) -> None:
    """The command `corral` of the inside."""
    path = Path(folder.inside) / "bin" / "corral"
    config.make_private_folder(path.parent)
    config.write_private_file(path, f'#!/bin/sh\nexec "{sys.executable}" -P -m {INSIDE} "$@"\n')
    path.chmod(0o700)


def mark_of(database: "Database") -> str:
    """By which a folder is known as this store's: several may share a home."""
    return sha256(database.address.encode()).hexdigest()


def forgotten(database: "Database") -> Iterator[Path]:
    """The folders of sessions of this store that it has forgotten."""
    mark = mark_of(database)
    for path in sorted((config.home() / "boxed").glob("ses_*")):
        try:
            own = Path(Folder(str(path)).mark).read_text(encoding="utf-8") == mark
            database.read(partial(sessions.get, session=path.name))
        except (OSError, Invalid):
            continue  # nobody knows whose it is
        except NotFound:
            if own:
                yield path


def forget(database: "Database") -> int:
    """Remove the folders of sessions that the store has forgotten; gives how many there were."""
    gone = 0
    for path in forgotten(database):
        _let_in(path)
        shutil.rmtree(path, ignore_errors=True)
        gone += not path.exists()
    return gone


def _let_in(path: Path) -> None:
    """Whoever was inside may have closed its own folders to everybody."""
    for top, folders, _ in os.walk(path):
        for name in folders:
            with suppress(OSError):
                inner = os.path.join(top, name)
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700, follow_symlinks=False)


# -- the sandbox ----------------------------------------------------------------------------------


def box(
    words: Sequence[str],
    folder: Folder,
    *,
    by: str,
    work: str | None,
    store: str,
    programs: Sequence[str] = (),
    reads: Sequence[str] = (),
    scratch: str,
) -> Wrapped:
    """A command inside of the sandbox of a session: no network, nothing in sight but the system's
    programs, its files and its work, and nothing to change but its work and its own file.

    Refused where nothing here can keep that, unless `by` is none, which says that nothing need.
    """
    kind = _kind(by)
    own = {folder.outside, folder.home} | ({work} if work is not None else set())
    hidden = [str(config.home()), *_store_files(store)]
    inner = [path for path in (*hidden, folder.top) if work is not None and _is_in(path, work)]
    if kind is Kind.LANDLOCK and inner:
        raise Refused(
            f"Landlock cannot keep the agent from {inner[0]}, which is inside of its work "
            "folder; install bubblewrap, or let it work elsewhere.",
            path=inner[0],
        )
    seen = [*_programs(programs), *reads, folder.inside]
    return sandbox.wrap(
        words,
        Bounds(
            writable=tuple(sorted(own)),
            readable=tuple(dict.fromkeys(path for path in seen if os.path.exists(path))),
            hidden=tuple(path for path in inner if path != folder.top),
            network=False,
            limits=ResourceLimits(processes=PROCESSES),
        ),
        scratch=scratch,
        kind=kind,
    )


def _kind(by: str) -> Kind:
    if by != "auto":
        return Kind(by)
    found = sandbox.probe(network=False)
    if found.kind is Kind.NONE or not sandbox.keeps_off_network(found.kind):
        why_not = found.why_not | {found.kind: "it keeps nobody off the network"}
        why = "; ".join(f"{kind}: {reason}" for kind, reason in why_not.items())
        raise Refused(
            f"No sandbox works here ({why}), and the agent is to be boxed. Install bubblewrap, or "
            "say `corral setting set gateway.sandbox none` to trust it without."
        )
    return found.kind


def _programs(words: Sequence[str]) -> list[str]:
    """Programs and scripts that the command names by their paths."""
    first = shutil.which(words[0]) if words else None
    named = [word for word in words if os.path.isabs(word) and os.path.isfile(word)]
    found = [path for path in (first, *named) if path is not None]
    return [each for path in found for each in (path, os.path.realpath(path))]


def _store_files(store: str) -> list[str]:
    """The store itself, where it is a file: nobody inside is to see it."""
    if not store.startswith("sqlite"):
        return []
    path = Path("/" + store.partition("://")[2].lstrip("/"))
    return [str(each) for each in sorted(path.parent.glob(f"{path.name}*"))]


def _is_in(path: str, folder: str) -> bool:
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((real, top)) == top


# -- looking --------------------------------------------------------------------------------------


def exchange(database: "Database", session: str, run: Run) -> Looked:
    """Take over what the agent has said since the last look, and tell it what became of it, where
    it may send to now, and answers to its questions. To be called as often as one likes; what a run
    says whose turn was ended is not heard any more."""
    folder = folder_of(session)
    talk = database.read(lambda tx: turns.talk_of(tx, session))
    if talk is not None and talk.run_id != run.id:
        return Looked({})
    shown = _tell(database, session, folder)
    taken = talk.taken if talk is not None else 0
    found = _read(folder, taken, shown.largest if shown else 0)
    if isinstance(found, Looked):
        return found
    looked = _take_over(database, session, run, found, shown)
    if looked.taken or looked.refused:
        _tell(database, session, folder)
    return looked


def _read(folder: Folder, taken: int, above: int) -> Snapshot | Looked:
    from corral.adapters.sandbox_bridge import outbound

    try:
        return outbound.read(folder, taken=taken, above=above)
    except (outbound.Busy, outbound.Torn):
        return Looked({}, busy=True)
    except outbound.Damaged as error:
        return Looked({}, trouble=str(error))


def _take_over(
    database: "Database", session: str, run: Run, found: Snapshot, shown: Shown | None
) -> Looked:
    taken = refused = 0
    refuse = partial(ingest.refuse, session=session, run_id=run.id)
    for row in found.rows:
        try:
            files = _files(database, session, run, row)
            take = partial(ingest.take, session=session, run=run, row=row, files=files)
            taken += database.write(take)
        except CorralError as error:
            why = partial(refuse, row=row, reason=error.message, tell=not refused)
            refused += database.write(why)
    for id, reason in [*found.strange, *_unexplained(database, session, found, shown)]:
        if shown is None or id not in shown.known:
            why = partial(refuse, row=id, reason=reason, tell=not refused)
            refused += database.write(why)
    if any(id.startswith("qst_") for id in found.acks):
        database.write(lambda tx: boxes.hear(tx, run, found.acks))
    return Looked(found.acks, taken, refused)


def _files(database: "Database", session: str, run: Run, row: Out) -> list[File]:
    """Private copies of the files that a message brings, from the folder that it has for them."""
    names = ingest.files_of(row)
    if not names:
        return []
    from corral.services.chat import attachments

    steps = os.path.join(OUTBOX, row.id)
    return attachments.keep(
        database,
        [os.path.join(steps, name) for name in names],
        [folder_of(session).outside],
        str(run.agent_id),
    )


def _unexplained(
    database: "Database", session: str, found: Snapshot, shown: Shown | None
) -> list[tuple[str, str]]:
    """Messages under numbers that were used before, of which nobody knows."""
    if shown is None:
        return []
    told = database.read(lambda tx: boxes.outcomes(tx, session))
    known = shown.known | told.pending | {each.message_out_id for each in told.outcomes}
    return [(id, "its number was used before") for id in sorted(found.old - known)]


def _tell(database: "Database", session: str, folder: Folder) -> Shown | None:
    """Let the host's file show what the store knows by now."""
    talk = database.read(lambda tx: turns.talk_of(tx, session))
    if talk is None or not os.path.isdir(folder.inside):
        return None
    told = database.read(lambda tx: boxes.outcomes(tx, session))
    picture = database.read(lambda tx: boxes.addresses(tx, talk))
    picture = msgspec.structs.replace(
        picture, rows=told.answers, outcomes=told.outcomes, above=talk.taken
    )
    shown = _show(database, folder, picture)
    if shown is not None and told.outcomes:
        ids = [each.message_out_id for each in told.outcomes]
        database.write(lambda tx: boxes.forget(tx, session, ids))
    return shown


# -- the end of a run -----------------------------------------------------------------------------


def close(database: "Database", session: str, run: Run, sandbox_by: str) -> Looked:
    """The last look, when the run is over: everything that its agent said is taken over, and a file
    that cannot be believed is put aside, which is said."""
    folder = folder_of(session)
    looked = exchange(database, session, run)
    if looked.busy:
        _mend(folder, sandbox_by, database)
        looked = exchange(database, session, run)
    now = database.clock.now()
    if looked.busy and (run.ended_at or 0) + BUSY_MS < now:
        looked = Looked({}, trouble="it is held, or cannot be repaired")
    if looked.busy:
        return looked
    from corral.adapters.sandbox_bridge import outbound

    outbound.end_turn(folder)
    if looked.trouble is not None:
        reason = looked.trouble
        database.write(lambda tx: ingest.condemn(tx, session, reason))
        outbound.put_aside(folder)
        return looked
    ended = {id: status for id, status in looked.acks.items() if status == "completed"}
    _show(database, folder, Picture(ended=ended))
    _keep_state(database, session, folder)
    return looked


def _keep_state(database: "Database", session: str, folder: Folder) -> None:
    found = _read(folder, 1 << 60, 0)
    if isinstance(found, Snapshot) and found.state:
        database.write(lambda tx: boxes.keep_state(tx, session, found.state))


def _mend(folder: Folder, by: str, database: "Database") -> None:
    """Let whoever died in the middle of a change take it back: inside, where it can do no harm."""
    words = [sys.executable, "-P", "-m", INSIDE, "mend", folder.outbound]
    try:
        wrapped = box(
            words,
            folder,
            by=by.removeprefix(BOXED),
            work=None,
            store=database.address,
            scratch=os.path.join(folder.top, "scratch"),
        )
        subprocess.run(
            wrapped.words,
            env=environment(folder) | wrapped.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MEND_SECONDS,
            check=False,
        )
    except (CorralError, OSError, subprocess.TimeoutExpired):
        return  # it is still torn then, and said to be


def environment(folder: Folder) -> dict[str, str]:
    """All that a boxed agent gets of the host's environment, and where its own things are."""
    kept = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    paths = [os.path.join(folder.inside, "bin"), os.path.dirname(sys.executable)]
    package = str(Path(corral.__file__).parent.parent)
    return own | {
        "PATH": os.pathsep.join([*paths, os.environ.get("PATH", os.defpath)]),
        "HOME": folder.home,
        "PYTHONPATH": package,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CORRAL_BOXED": folder.top,
        "CORRAL_AGENT_HOME": folder.home,
    }


def order(folder: Folder, started: "Start", provider: str) -> str:
    """Leave word for the inside how the agent is started; gives the file's path."""
    path = Path(folder.inside) / "order.json"
    told = {
        "top": folder.top,
        "args": started.args,
        "stdin": started.stdin,
        "env": started.env,
        "provider": provider,
    }
    config.write_private_file(path, json.dumps(told))
    return str(path)
