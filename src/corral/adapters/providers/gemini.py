"""Gemini CLI: `gemini -o stream-json`.

A failed request ends with an exit code that is the HTTP status modulo 256, so a code over 128 is no
signal. The words of an answer come in pieces. Its input tokens hold what came from the cache.
"""

from typing import Any

from corral.adapters.providers.facts import Denied, Fact, Finished, Logged, SessionNamed, Used
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import (
    MAX_CONTENT,
    Calls,
    JsonLines,
    answered,
    called,
    number,
    said,
    shorten,
    table,
    text,
)
from corral.adapters.providers.provider import (
    Ask,
    Cli,
    Start,
    refuse_denials,
    session_of,
    started,
    told,
)
from corral.kernel.clock import Clock


class Gemini(Cli):
    name = "gemini"
    program = "gemini"
    quit_command = "/quit"
    chooses_session = True
    transcript_files = ".gemini/tmp/*/chats/*"
    acp_args = ("--acp",)

    def start(self, ask: Ask, program: str | None = None) -> Start:
        refuse_denials(self.name, ask)
        args = [program or self.program]
        session = session_of(ask)
        if not ask.interactive:
            args += ["-o", "stream-json"]
        if ask.latest:
            args += ["--resume", "latest"]
        elif session:
            args += ["--resume" if ask.resume else "--session-id", session]
        if ask.model:
            args += [f"--model={ask.model}"]
        args += self.trust_args(ask) + approval(ask, edit="auto_edit") + list(ask.extra)
        prompt, stdin = told(ask, instructions=True)
        args += [f"--prompt-interactive={prompt}"] if prompt else []
        if not ask.interactive:
            args += ["--prompt="]  # headless; the words come by standard input
        return started(args, ask, stdin, session)

    def trust_args(self, ask: Ask) -> list[str]:
        # In an untrusted folder gemini exits with 55 or ignores the approvals.
        return ["--skip-trust"] if ask.is_trusted else []

    def parser(self, clock: Clock | None = None) -> "GeminiParser":
        return GeminiParser(clock)


PROVIDER = Gemini()


def approval(ask: Ask, *, edit: str) -> list[str]:
    args = []
    allowed = [*ask.allow, *(["run_shell_command"] if "run" in ask.approvals else [])]
    if "all" in ask.approvals:
        args += ["--approval-mode=yolo"]
    elif "edit" in ask.approvals:
        args += [f"--approval-mode={edit}"]
    if allowed:
        args += [f"--allowed-tools={','.join(allowed)}"]
    return args


# Tools that gemini does not register without an approval: a call then fails with "not found".
WITHHELD = frozenset({"write_file", "replace", "run_shell_command", "web_fetch", "save_memory"})
_DENIED = ("denied by policy", "requires user confirmation", "cancelled by user")


def is_denial(tool: str | None, kind: str | None, content: str) -> bool:
    """Whether a call failed because its tool was not approved."""
    if kind == "tool_not_registered" or "not found. did you mean" in content.lower():
        return tool in WITHHELD
    return kind == "policy_violation" or any(words in content.lower() for words in _DENIED)


class GeminiParser(JsonLines):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._words = ""
        self._calls = Calls()
        self._key: str | None = None

    def read(self, message: dict[str, Any]) -> list[Fact]:
        kind = message.get("type")
        if kind == "message":
            if message.get("role") != "assistant":
                return []
            if message.get("delta") is True:
                self._words += text(message, "content") or ""
                return self._flush() if len(self._words) > MAX_CONTENT else []
            return [*self._flush(), *said(text(message, "content") or "")]
        return [*self._flush(), *self._event(str(kind), message)]

    def _flush(self) -> list[Fact]:
        whole, self._words = self._words, ""
        return said(whole)

    def _event(self, kind: str, message: dict[str, Any]) -> list[Fact]:
        match kind:
            case "init":
                session = text(message, "session_id")
                self._key = f"{session}/{text(message, 'timestamp')}"
                return [SessionNamed(session, model=text(message, "model"))] if session else []
            case "tool_use":
                call, name = text(message, "tool_id"), text(message, "tool_name")
                self._calls.add(call, name)
                return [called(call, name, message.get("parameters"))]
            case "tool_result":
                call = text(message, "tool_id")
                content = text(message, "output") or text(message, "error", "message") or ""
                failed, name = text(message, "status") != "success", self._calls.take(call)
                facts: list[Fact] = [answered(call, name, content, is_error=failed)]
                if failed and is_denial(name, text(message, "error", "type"), content):
                    facts.append(Denied(name or "?", call))
                return facts
            case "error":
                return [Logged("warn", shorten(text(message, "message") or "An error.", 4_096))]
            case "result":
                return self._result(message)
            case _:
                return []

    def _result(self, message: dict[str, Any]) -> list[Fact]:
        facts: list[Fact] = []
        for model, stats in table(message, "stats", "models").items():
            cached = number(stats, "cached")
            used = Used(
                model,
                input=max(0, number(stats, "input_tokens") - cached),
                output=number(stats, "output_tokens"),
                cache_read=cached,
                key=f"{self._key}/{model}" if self._key else None,
            )
            if used.input or used.output or used.cache_read:
                facts.append(used)
        if text(message, "status") == "success":
            return [*facts, Finished(True)]
        told = text(message, "error", "message") or "The request failed."
        limit = limit_in(told, self.clock.now())
        return [*facts, *([limit] if limit else []), Finished(False, shorten(told))]

    def end(self) -> list[Fact]:
        return self._flush()
