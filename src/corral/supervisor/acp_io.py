"""Agents that speak the Agent Client Protocol over their standard input and output."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from corral.adapters.providers.acp import AcpClient, PromptResult
from corral.adapters.providers.choices import NO_ANSWERS, YES_ANSWERS
from corral.adapters.providers.facts import PermissionFact, ResultFact
from corral.domain.agents.tools import is_allowed
from corral.domain.runs.model import Attention, Run, build_dialog
from corral.kernel.errors import CorralError
from corral.supervisor.agent_io import MAX_PAUSE, AgentIO, Log, Reply
from corral.supervisor.recorder import Recorder

if TYPE_CHECKING:
    from corral.api import Corral


class AcpIO(AgentIO):
    """One conversation over the protocol; the run is done when its prompt is finished."""

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
        self.recorder = self._recorder = Recorder(store, run, self.status, log, secrets=secrets)
        self._client = AcpClient(
            write,
            cwd=run.cwd,
            prompt=prompt,
            session=session,
            policy=approvals,
            denies=lambda names: _is_denied(names, allow, deny),
            mcp_servers=servers,
            clock=store,
        )
        self._questions: list[PermissionFact] = []
        self._client.start()

    def feed(self, data: bytes) -> None:
        for fact in self._client.feed(data):
            if isinstance(fact, PromptResult):
                self._finish(fact)
            else:
                self._recorder.record([fact])
                if isinstance(fact, PermissionFact):
                    self._questions.append(fact)
        self._show_question()
        self._recorder.check_budget([*self._client.pending(), *self.pending_in_transcript()])

    def poll(self) -> bool:
        self._recorder.flush()
        self._recorder.check_budget([*self._client.pending(), *self.pending_in_transcript()])
        self.pause = MAX_PAUSE if self._recorder.has_pending else None
        return False

    def _show_question(self) -> None:
        self.status.attention = Attention.NEEDS_INPUT if self._questions else None
        self.status.dialog = None
        if self._questions:
            question = self._questions[0]
            self.status.dialog = build_dialog(
                question.title, question.options, kind=question.tool, key=question.id
            )

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        shown = self.status.dialog
        if dialog is not None and (shown is None or shown.id != dialog):
            reply({"ok": False, "error": "dialog_changed"})
        elif self._answer_or_prompt(text):
            reply({"ok": True, "how": "typed" if shown is None else "answered", "option": text})
        elif shown is not None:
            reply({"ok": False, "error": "not_an_option", "asks": shown.options})
        else:
            reply({"ok": False, "error": "no_input"})
        return True

    def _answer_or_prompt(self, text: str) -> bool:
        """Answer the open question, or send the next prompt; return False if that failed."""
        text = text.strip()
        try:
            if not self._questions:
                self._client.prompt(text)
                self.status.is_done = False
                return True
            question = self._questions[0]
            matching = (option for option in question.options if option.lower() == text.lower())
            choice: str | bool = next(matching, text)
            if text.isdecimal() and 1 <= int(text) <= len(question.options):
                choice = question.options[int(text) - 1]
            if text.lower() in YES_ANSWERS:
                choice = True
            elif text.lower() in NO_ANSWERS:
                choice = False
            self._client.answer(question.id, choice)
        except (CorralError, BrokenPipeError):
            return False
        self._questions.pop(0)
        self._show_question()
        return True

    def close(self) -> None:
        self._recorder.record(self._client.pending())  # usage of an unfinished prompt
        for fact in self._client.close():
            if isinstance(fact, PromptResult):
                self._finish(fact)
            else:
                self._recorder.record([fact])
        self._recorder.finish()

    def _finish(self, done: PromptResult) -> None:
        self._questions.clear()
        self._show_question()
        self.status.is_done = True
        self.status.result = ResultFact(done.ok, done.message or (None if done.ok else done.reason))


def _is_denied(names: set[str], allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    """Whether a tool is denied to the agent. The protocol knows a tool by several names."""
    if any(not is_allowed(name, (), deny) for name in names):
        return True
    return bool(allow) and not any(is_allowed(name, allow, ()) for name in names)
