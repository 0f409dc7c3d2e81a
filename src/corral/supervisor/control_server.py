"""What those who watch a run may ask of its keeper, and how it answers."""

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from corral.adapters import process
from corral.adapters.ancestry import ancestors_of

if TYPE_CHECKING:
    from corral.adapters.ancestry import Ancestor
    from corral.kernel.identity import RunIdentity
    from corral.supervisor.agent_io import Reply, Voice
    from corral.supervisor.watchers import Watchers

SUSPEND = b"\x1a"  # Ctrl-Z
SUSPENSION_TAKES = 0.1


class Kept(Protocol):
    """What the line needs of the keeper."""

    @property
    def agent(self) -> process.Identity | None: ...
    @property
    def recent(self) -> bytes: ...
    def type_in(self, data: bytes) -> bool: ...
    @property
    def voice(self) -> "Voice": ...
    def resize(self, rows: int, columns: int) -> None: ...
    def hurry(self, grace_ms: int | None) -> None: ...
    def is_sandboxed(self, above: "list[Ancestor]") -> bool: ...
    def run_of(self, above: "list[Ancestor]") -> "RunIdentity | None": ...
    def is_started_by(self, caller: "RunIdentity") -> bool: ...


class Line:
    """The keeper's end of the line, open from the agent's first moment to its last."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self._kept = kept
        self._watchers: Watchers | None = None
        self.look_at: float | None = None
        """When to look whether the agent was suspended from its terminal."""
        self.passed_on: set[int] = set()
        """Signals that came from a person."""
        self._outside: set[Ancestor] = set()
        """Processes that are known to be in no run."""
        self._open(folder)

    def _open(self, folder: Path) -> None:
        from corral.supervisor.watchers import Watchers

        with suppress(OSError):  # a full disk: the run goes on, and hears of a stop by the store
            self._watchers = Watchers(
                folder,
                answer=self._answer,
                on_input=self._typed,
                on_size=lambda rows, columns: self._kept.resize(int(rows), int(columns)),
                replay=lambda: self._kept.recent,
                may_connect=self._may_connect,
                may_type=self._may_type,
            )

    def _may_connect(self, pid: int | None) -> bool:
        """Whether a process may use the line at all: not one of a sandboxed run. Landlock does not
        keep it from connecting, and typing into a run without a sandbox would lead it out."""
        if pid is None or pid == os.getpid():
            return True
        above = ancestors_of(pid)
        return bool(above) and not self._kept.is_sandboxed(above)

    def _may_type(self, pid: int | None) -> bool:
        """Whether a process may type into the run: not one inside of the run itself. A process of
        another run may where that run started this one, and while this one asks nothing: only a
        person approves, and typed text has no source that an agent could see."""
        if pid is None or pid == os.getpid():
            return True
        above = ancestors_of(pid)
        if not above:
            return False  # it has ended, so it cannot be told
        agent = self._kept.agent
        inside = {each.pid for each in above}
        if os.getpid() in inside or (agent is not None and agent.pid in inside):
            return False
        if above[0] in self._outside:
            return True
        caller = self._kept.run_of(above)
        if caller is None:
            self._outside.add(above[0])  # asked of the store once, not for each key
            return True
        return self._kept.voice.attention is None and self._kept.is_started_by(caller)

    @property
    def has_watchers(self) -> bool:
        """Whether anybody is attached; True also where nobody ever can be."""
        return self._watchers is None or self._watchers.has_attached

    def register(self, poll: "select.poll") -> None:
        if self._watchers is not None:
            self._watchers.register(poll)

    def handle(self, ready: Iterable[tuple[int, int]]) -> None:
        if self._watchers is not None:
            self._watchers.handle(ready)

    def show(self, data: bytes) -> None:
        if self._watchers is not None:
            self._watchers.show(data)

    def look(self) -> None:
        """Tell those who are attached when the agent was suspended: so are they then."""
        self.look_at = None
        agent = self._kept.agent
        if agent is None or self._watchers is None:
            return
        with suppress(OSError):
            found = process.stat(agent.pid)
            if found is not None and found.state == "T":
                self._watchers.suspend()

    def end(self, how: dict[str, Any]) -> None:
        """Say how the run ended, and hang up."""
        if self._watchers is not None:
            self._watchers.end(how)
            self._watchers = None

    def _typed(self, data: bytes) -> None:
        if SUSPEND in data:
            self.look_at = time.monotonic() + SUSPENSION_TAKES
        self._kept.type_in(data)

    def _answer(self, request: dict[str, Any], reply: "Reply") -> None:
        match request.get("op"):
            case "stop":
                grace_ms = request.get("grace_ms")
                self._kept.hurry(grace_ms if isinstance(grace_ms, int) else None)
            case "send":
                self._send(request, reply)
                return
            case "signal":
                reply({"ok": self._signal(int(request.get("number", 0)))})
                return
        reply({"ok": True})

    def _send(self, request: dict[str, Any], reply: "Reply") -> None:
        """Handle text from a person; every interface ends up here."""
        text, enter = str(request.get("text", "")), request.get("enter") is not False
        dialog = request.get("dialog")
        wanted = dialog if isinstance(dialog, str) else None
        if not self._kept.voice.send(text, enter=enter, dialog=wanted, reply=reply):
            typed = text + ("\r" if enter else "")
            reply({"ok": self._kept.type_in(typed.encode())})

    def _signal(self, number: int) -> bool:
        """Pass a signal on to the agent's process group, as a terminal would."""
        agent = self._kept.agent
        if agent is None or process.look(agent) is not process.Standing.ALIVE:
            return False
        try:
            os.killpg(agent.pid, number)
        except (OSError, OverflowError, ValueError):
            return False
        self.passed_on.add(number)
        return True
