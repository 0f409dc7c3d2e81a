"""An agent that speaks the Agent Client Protocol over its input and output."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from corral.adapters.providers.acp import AcpTalk, Done
from corral.adapters.providers.choices import NO, YES
from corral.adapters.providers.facts import Asked, Finished
from corral.domain.agents.tools import allows
from corral.domain.runs.model import Attention, Run, dialog_of
from corral.kernel.errors import CorralError
from corral.supervisor.agent_io import LONGEST_PAUSE, Log, Recorder, Reply, Voice

if TYPE_CHECKING:
    from corral.api import Corral


class AcpVoice(Voice):
    """Holds one conversation by the protocol; the run is done when its prompt is."""

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
        self._show_question()
        self._recorder.look_at_budget([*self._talk.pending(), *self.pending_in_record()])

    def look(self) -> bool:
        self._recorder.pass_on()
        self._recorder.look_at_budget([*self._talk.pending(), *self.pending_in_record()])
        self.pause = LONGEST_PAUSE if self._recorder.waits else None
        return False

    def _show_question(self) -> None:
        self.attention = Attention.NEEDS_INPUT if self._open else None
        self.dialog = None
        if self._open:
            asked = self._open[0]
            self.dialog = dialog_of(asked.title, asked.options, kind=asked.tool, key=asked.id)

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        shown = self.dialog
        if dialog is not None and (shown is None or shown.id != dialog):
            reply({"ok": False, "error": "dialog_changed"})
        elif self._say(text):
            reply({"ok": True, "how": "typed" if shown is None else "answered", "option": text})
        elif shown is not None:
            reply({"ok": False, "error": "not_an_option", "asks": shown.options})
        else:
            reply({"ok": False, "error": "no_input"})
        return True

    def _say(self, text: str) -> bool:
        """Answer what it asks, or give it the next prompt."""
        words = text.strip()
        try:
            if not self._open:
                self._talk.prompt(words)
                self.is_done = False
                return True
            asked = self._open[0]
            named = (one for one in asked.options if one.lower() == words.lower())
            option: str | bool = next(named, words)
            if words.isdecimal() and 1 <= int(words) <= len(asked.options):
                option = asked.options[int(words) - 1]
            if words.lower() in YES:
                option = True
            elif words.lower() in NO:
                option = False
            self._talk.answer(asked.id, option)
        except (CorralError, BrokenPipeError):
            return False
        self._open.pop(0)
        self._show_question()
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
        self._show_question()
        self.is_done = True
        self.finished = Finished(done.ok, done.message or (None if done.ok else done.reason))


def _denied(names: set[str], allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    """Whether a tool, which the protocol knows by several names, was not granted to the agent."""
    if any(not allows(name, (), deny) for name in names):
        return True
    return bool(allow) and not any(allows(name, allow, ()) for name in names)
