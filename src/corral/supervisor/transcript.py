"""The live reader of the transcript that an agent CLI writes of its conversation.

At a terminal, or with a command line of the user, turns and usage are only in the transcript. Some
streams report usage at the end of a turn or not at all; the transcript has each request to the
model. Every item keeps its own time. Reading a transcript again, after a supervisor took over, adds
nothing twice: the key of a turn is its place in the transcript.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral.adapters.processes import process
from corral.adapters.providers.facts import DenialFact, SessionFact, TurnFact, UsageFact
from corral.adapters.providers.provider import SESSION_ID
from corral.adapters.transcript_copies import TranscriptCopy
from corral.adapters.transcripts.reader import TranscriptItem, TranscriptReader, get_reader
from corral.domain.runs.model import Run, RunMode
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.recorder import Recorder
from corral.supervisor.stream_io import StreamIO

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider
    from corral.api import Corral
    from corral.supervisor.worktree_sandbox import WorktreeSandbox

PROC = "/proc"

POLL_SECONDS = 1.0
# The search continues after a session was found, because the user may switch to another one.
SEARCH_SECONDS = 5.0
# The maximum share of time that is spent on reading. A long transcript is read less often.
MAX_READ_SHARE = 0.1
# The maximum difference between the clock of the file system and ours.
CLOCK_SLACK_MS = 1_000


class TranscriptUse(StrEnum):
    """Which parts of a transcript are used."""

    ALL = "all"
    """Turns, usage and denials. The transcript is the only source of them."""
    USAGE = "usage"
    """Usage and denials. The stream reports its usage with the same keys and counters."""
    ESTIMATE = "estimate"
    """Usage counts against budgets. It is charged only if the stream reports none."""


# For providers with a stream: the parts that complement the stream.
BESIDE_STREAM = {
    "codex": TranscriptUse.USAGE,
    "copilot": TranscriptUse.USAGE,
    "opencode": TranscriptUse.USAGE,
    "gemini": TranscriptUse.ESTIMATE,
}


class TranscriptLocator:
    """Finds and reads the transcripts that belong to a run."""

    def __init__(
        self,
        reader: TranscriptReader,
        folder: Path,
        *,
        cwd: str,
        started_at: int,
        is_alone: Callable[[], bool],
        is_taken: Callable[[str], bool],
        copy: TranscriptCopy | None = None,
    ) -> None:
        """`copy`: the folder belongs to a sandboxed run alone, and `folder` is in a copy of it."""
        self._reader, self._folder, self._cwd = reader, folder, cwd
        self.started_at = started_at - CLOCK_SLACK_MS
        self._is_alone, self._is_taken = is_alone, is_taken
        self._copy = copy

    def refresh(self) -> None:
        """Bring the copy of a sandboxed run's transcripts up to date."""
        if self._copy is not None:
            self._copy.refresh()

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()

    def find_sessions(self, agent_pid: int | None) -> list[str]:
        """Return the sessions of a process and its descendants.

        `agent_pid` is None after the process has ended.
        If the CLI does not record process ids, directory and time must leave one candidate. In a
        sandbox the recorded pid is that of another namespace, but no other run writes to its
        folder: every session that began there is the run's.
        """
        if agent_pid is not None and self._copy is None:
            pids = [agent_pid, *process.descendants(agent_pid)]
            sessions = self._reader.list_open_sessions(self._folder, pids, self.started_at)
            if sessions or self._reader.RECORDS_PROCESSES:
                return sessions
        later = self._reader.list_sessions_since(self._folder, self._cwd, self.started_at)
        free = [session for session in later if not self._is_taken(session)]
        if self._copy is not None:
            return free
        return free if len(free) == 1 and self._is_alone() else []

    def list_files(self, session: str) -> list[tuple[Path, bool]]:
        """List the transcript of a session and those of its sub-agents (only for usage)."""
        path = self._reader.find_transcript(self._folder, session)
        if path is None:
            return []  # no turn yet
        return [
            (path, True),
            *((child, False) for child in self._reader.list_subagent_transcripts(path)),
        ]

    def read_title(self, path: Path) -> str | None:
        head = self._reader.read_head(path)
        return head.title if head is not None else None

    def find_model(self, session: str) -> str | None:
        """Return the model of the last request of the conversation, if the transcript has it."""
        path = self._reader.find_transcript(self._folder, session)
        if path is None:
            return None
        find_model = getattr(self._reader, "find_model", None)
        if find_model is not None:
            return str(model) if (model := find_model(path)) else None
        facts = (item.fact for item in self._reader.iter_items(path, offset=0))
        models = [fact.model for fact in facts if isinstance(fact, UsageFact) and fact.model]
        return models[-1] if models else None

    def read_items(self, path: Path, offset: int) -> list[TranscriptItem]:
        return list(self._reader.iter_items(path, offset=offset))


class TranscriptFollower:
    """The conversation of one attempt, read from the CLI's transcript."""

    def __init__(
        self,
        locator: TranscriptLocator,
        recorder: Recorder,
        *,
        use: TranscriptUse,
        session: str | None,
        prompt: str | None,
        is_screened: bool = False,
    ) -> None:
        self._locator, self.recorder, self._use = locator, recorder, use
        self.is_screened = is_screened
        """Whether a screen shows that the agent works."""
        self._prompt = prompt
        self._prompt_place: str | None = None
        self._sessions: list[str] = [session] if session else []
        self._offsets: dict[Path, int] = {}
        self._newest: dict[Path, set[bytes]] = {}
        """The digests of the items at the offset: a reader may yield those again."""
        self._linked_session: str | None = session
        self._searches = session is None or use is TranscriptUse.ALL
        self._next_search = 0.0
        self.next_poll = 0.0
        self._before: dict[str, UsageFact] = {}
        self._estimate: dict[str, UsageFact] = {}
        self._newest_model: str | None = None
        """The model of the newest usage that was read."""
        self._settled_at = 0
        """When the stream last reported usage; its report covers all requests until then."""

    @property
    def is_found(self) -> bool:
        return bool(self._sessions)

    @property
    def pending(self) -> list[UsageFact]:
        """Usage that counts against budgets and is not charged."""
        return [self._subtract_start(used) for used in self._estimate.values()]

    def set_session(self, session: str) -> None:
        """Set the session that the stream reports."""
        if session not in self._sessions and SESSION_ID.fullmatch(session):
            self._sessions.append(session)
        self._searches = False

    def poll(self, agent_pid: int | None) -> bool:
        """Record the new items; return whether there were any."""
        now = time.monotonic()
        if now < self.next_poll:
            return False
        if agent_pid is not None and self._searches and now >= self._next_search:
            self._search(agent_pid, now)
        has_items = self._read()
        self.recorder.flush()
        duration = time.monotonic() - now
        self.next_poll = now + max(POLL_SECONDS, duration / MAX_READ_SHARE)
        return has_items

    def replaces_usage(self) -> bool:
        """Read the transcript; return whether its usage replaces that of the stream.

        Both then have the same keys or counters.
        """
        if self._use is not TranscriptUse.USAGE:
            return False
        self._read()
        return bool(self._offsets)

    def settle(self, now_ms: int) -> None:
        """Drop the estimate: the stream has reported all usage until now, and it is charged."""
        if self._use is TranscriptUse.ESTIMATE:
            self._before |= {key: used for key, used in self._estimate.items() if used.counter}
            self._estimate.clear()
            self._settled_at = now_ms

    def close(self) -> None:
        """Read the rest after the agent has ended; charge the usage that no stream reported."""
        if not self._sessions:
            self._search(None, time.monotonic())
        if self.recorder.is_behind:
            self.recorder.finish()  # the rest was not read before
        self._read()
        if self._estimate:
            rest = self.pending if self._settled_at else list(self._estimate.values())
            self.recorder.record(rest, place="record:estimate")
        self._estimate.clear()
        self.recorder.finish()
        self._locator.close()

    def find_model(self, session: str) -> str | None:
        """Return the model of a session, for a stream that does not report it."""
        try:
            if self._newest_model is None:
                self._locator.refresh()
                self._newest_model = self._locator.find_model(session)
        except OSError:
            pass  # no transcript yet; the next call tries again
        return self._newest_model

    def _search(self, agent_pid: int | None, now: float) -> None:
        try:
            self._locator.refresh()
            sessions = self._locator.find_sessions(agent_pid)
        except OSError:
            sessions = []
        for session in sessions:
            if session not in self._sessions and SESSION_ID.fullmatch(session):
                self._sessions.append(session)
        if self._sessions:
            self._next_search = now + SEARCH_SECONDS

    def _read(self) -> bool:
        has_items = False
        if self.recorder.is_behind:
            return False  # the transcript keeps the rest until the store is available
        try:
            self._locator.refresh()
        except OSError:
            return False  # no space left for the copy; the next poll tries again
        for session in self._sessions:
            try:
                for path, is_main in self._locator.list_files(session):
                    self.recorder.budget.is_measured = True
                    if is_main and session != self._linked_session:
                        self._link(session, path)
                    has_items = self._read_file(session, path, is_main=is_main) or has_items
            except OSError:
                continue  # replaced or unreadable now; the next poll tries again
        return has_items

    def _link(self, session: str, path: Path) -> None:
        """Link the run to the session before any of its turns are recorded."""
        self._linked_session = session
        if self._use is TranscriptUse.ALL:
            self.recorder.link(SessionFact(session), title=self._locator.read_title(path))

    def _read_file(self, session: str, path: Path, *, is_main: bool) -> bool:
        """Record the new items of a file; return whether there were any."""
        offset = self._offsets.get(path, 0)
        items = self._locator.read_items(path, offset)
        if not items:
            return False
        before = self._newest.get(path, set())
        newest = self._offsets[path] = max(offset, *(item.offset for item in items))
        self._newest[path] = {_hash_item(item) for item in items if item.offset == newest}
        has_items = False
        counts: dict[str, int] = {}
        for item in items:
            at = item.place or str(item.offset)
            nth = counts[at] = counts.get(at, -1) + 1
            if item.offset == offset and _hash_item(item) in before:
                continue
            has_items = True
            self._record_item(
                item, f"record:{session}:{path.name[-40:]}:{at}.{nth}", is_main=is_main
            )
        return has_items

    def _record_item(self, item: TranscriptItem, place: str, *, is_main: bool) -> None:
        fact = item.fact
        is_new = item.at is None or item.at >= self._locator.started_at
        if isinstance(fact, UsageFact):
            is_open = item.at is None or item.at > self._settled_at
            self._record_usage(fact, item.at, place, is_new=is_new and is_open)
        elif not is_new or not is_main:
            return
        elif isinstance(fact, DenialFact) or (
            self._use is TranscriptUse.ALL and not self._is_prompt(fact, place)
        ):
            self.recorder.record([fact], place=place, at=item.at, is_unique_across_attempts=True)

    def _record_usage(self, used: UsageFact, at: int | None, place: str, *, is_new: bool) -> None:
        key = used.counter or used.key or place
        self._newest_model = used.model or self._newest_model
        if not is_new:
            if used.counter:
                self._before[key] = used
            return
        if self._use is TranscriptUse.ESTIMATE:
            self._estimate[key] = used
        else:
            self.recorder.record([used], place=place, at=at, is_unique_across_attempts=True)

    def _subtract_start(self, used: UsageFact) -> UsageFact:
        """Subtract what a counter had when the run began."""
        before = self._before.get(used.counter or "")
        if before is None:
            return used
        return replace(
            used,
            counter=None,
            input=max(0, used.input - before.input),
            output=max(0, used.output - before.output),
            cache_read=max(0, used.cache_read - before.cache_read),
            cache_write=max(0, used.cache_write - before.cache_write),
        )

    def _is_prompt(self, fact: TurnFact, place: str) -> bool:
        """Whether the turn is the run's own prompt, which is in the session already.

        A transcript can yield one item again, so the place of the prompt is remembered.
        """
        if place == self._prompt_place:
            return True
        if fact.role != "user" or self._prompt is None:
            return False
        if not fact.content.strip().endswith(self._prompt.strip()):
            return False
        # Only the first match: a later turn with the same text is not the prompt.
        self._prompt, self._prompt_place = None, place
        return True


def _hash_item(item: TranscriptItem) -> bytes:
    return hashlib.blake2b(repr(item).encode(errors="replace"), digest_size=16).digest()


def follow_transcript(
    agent_io: AgentIO,
    recorder: Recorder,
    *,
    store: "Corral",
    run: Run,
    provider: "Provider",
    env: Mapping[str, str],
    session: str | None,
    started_at: int,
    prompt: str | None,
    worktree_sandbox: "WorktreeSandbox | None",
) -> None:
    """Make `agent_io` follow the transcript of the CLI, if its stream does not report everything.

    The transcripts in the private home of a sandboxed run are not trusted and read from a copy.
    """
    reader = get_reader(provider.name)
    use: TranscriptUse | None = TranscriptUse.ALL
    if run.mode is RunMode.ACP:
        use = TranscriptUse.ESTIMATE
    elif isinstance(agent_io, StreamIO) and not agent_io.only_outcome:
        use = BESIDE_STREAM.get(provider.name)
    if reader is None or use is None:
        return

    def is_taken(session: str) -> bool:
        other = store.sessions.by_provider(provider.name, session)
        return other is not None and other.id != run.session_id

    def is_alone() -> bool:
        pid = store.runs.get(run.id).pid
        own_pids = [pid, *process.descendants(pid)] if pid else []
        return not _is_used_elsewhere(provider.program, run.cwd, own_pids)

    root, copy = reader.get_root(env), None
    if worktree_sandbox is not None:
        below = root.relative_to(worktree_sandbox.home)
        patterns = [f"{below}/{pattern}" for pattern in reader.RECORD_FILES]
        copy = TranscriptCopy(worktree_sandbox.home, patterns, worktree_sandbox.transcripts_folder)
        root = worktree_sandbox.transcripts_folder / below
    follower = TranscriptFollower(
        TranscriptLocator(
            reader,
            root,
            cwd=run.cwd,
            started_at=started_at,
            is_alone=is_alone,
            is_taken=is_taken,
            copy=copy,
        ),
        recorder,
        use=use,
        session=session,
        prompt=prompt,
        is_screened=run.mode is RunMode.PTY and provider.screen is not None,
    )
    agent_io.set_transcript(follower)


def _is_used_elsewhere(program: str, cwd: str, own_pids: Sequence[int]) -> bool:
    """Whether a process of this program outside of the run works in the directory."""
    for entry in os.scandir(PROC) if os.path.isdir(PROC) else ():
        if not entry.name.isdecimal() or int(entry.name) in own_pids:
            continue
        pid = int(entry.name)
        names = {os.path.basename(argument) for argument in process.read_command_line(pid)[:3]}
        if program in names and process.read_cwd(pid) == cwd:
            return True
    return False
