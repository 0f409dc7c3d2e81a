"""An agent that speaks the Agent Client Protocol over its input and output."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from corral.adapters.providers.acp import AcpTalk, Done
from corral.adapters.providers.facts import Asked, Finished
from corral.keeper.voice import LONGEST_PAUSE, Log, Recorder, Voice
from corral.kernel.errors import CorralError
from corral.kernel.text import abridged
from corral.rooms.agents.tools import allows
from corral.rooms.runs.model import Attention, Run

if TYPE_CHECKING:
    from corral.library import Corral

YES = ("y", "yes", "allow", "ok")
NO = ("n", "no", "deny", "reject")
MOST_OPTIONS = 10  # that a person is told of
LONGEST_OPTION = 60


class AcpVoice(Voice):
    """Holds one conversation by the protocol; the run is done when its prompt is."""

    speaks = True

    def __init__(
        self,
        store: "Corral",
        run: Run,
        *,
        write: Callable[[bytes], None],
        prompt: str,
        session: str | None,
        approvals: frozenset[str],
        allow: tuple[str, ...],
        deny: tuple[str, ...],
        servers: list[dict[str, Any]],
        secrets: Sequence[str],
        log: Log,
    ) -> None:
        super().__init__()
        self.recorder = self._recorder = Recorder(store, run, self, log, secrets=secrets)
        self._talk = AcpTalk(
            write,
            cwd=run.cwd,
            prompt=prompt,
            session=session,
            policy=approvals,
            denies=lambda names: _denied(names, allow, deny),
            mcp_servers=servers,
            clock=store,
        )
        self._open: list[Asked] = []
        self._talk.start()

    def feed(self, data: bytes) -> None:
        for fact in self._talk.feed(data):
            if isinstance(fact, Done):
                self._finish(fact)
            else:
                self._recorder.take([fact])
                if isinstance(fact, Asked):
                    self._open.append(fact)
        self.attention = Attention.NEEDS_INPUT if self._open else None
        self._recorder.look_at_budget([*self._talk.pending(), *self.pending_in_record()])

    def look(self) -> bool:
        self._recorder.pass_on()
        self._recorder.look_at_budget([*self._talk.pending(), *self.pending_in_record()])
        self.pause = LONGEST_PAUSE if self._recorder.waits else None
        return False

    @property
    def asks(self) -> list[str]:
        # The agent may have written books into them.
        options = self._open[0].options[:MOST_OPTIONS] if self._open else []
        return [abridged(option, LONGEST_OPTION) for option in options]

    def say(self, text: str) -> bool:
        """Answer what it asks, or give it the next prompt."""
        words = text.strip()
        try:
            if not self._open:
                self._talk.prompt(words)
                self.is_done = False
                return True
            asked = self._open[0]
            named = (one for one in asked.options if one.lower() == words.lower())
            option: str | None = next(named, words)
            if words.lower() in YES:
                option = asked.options[0] if asked.options else None
            elif words.lower() in NO:
                option = None
            self._talk.answer(asked.id, option)
        except (CorralError, BrokenPipeError):
            return False
        self._open.pop(0)
        self.attention = Attention.NEEDS_INPUT if self._open else None
        return True

    def close(self) -> None:
        self._recorder.take(self._talk.pending())  # what it spent in a prompt that it did not end
        for fact in self._talk.close():
            if isinstance(fact, Done):
                self._finish(fact)
            else:
                self._recorder.take([fact])
        self._recorder.finish()

    def _finish(self, done: Done) -> None:
        self._open.clear()
        self.is_done = True
        self.finished = Finished(done.ok, done.message or (None if done.ok else done.reason))


def _denied(names: set[str], allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    """Whether a tool, which the protocol knows by several names, was not granted to the agent."""
    if any(not allows(name, (), deny) for name in names):
        return True
    return bool(allow) and not any(allows(name, allow, ()) for name in names)
