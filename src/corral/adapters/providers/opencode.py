"""opencode: `opencode run --format json`, the prompt by standard input (an argument is quoted)."""

from typing import Any

import msgspec

from corral.adapters.providers.facts import (
    Denied,
    Fact,
    Finished,
    LimitReached,
    SessionNamed,
    Used,
)
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import (
    JsonLines,
    answered,
    called,
    micros,
    number,
    said,
    shorten,
    table,
    text,
)
from corral.adapters.providers.provider import Ask, Cli, Start, session_of, told
from corral.kernel.clock import SECOND, Clock


class Opencode(Cli):
    name = "opencode"
    program = "opencode"
    quit_command = "/exit"
    acp_args = ("acp",)

    def start(self, ask: Ask, program: str | None = None) -> Start:
        args = [program or self.program]
        session = session_of(ask) if ask.resume else None
        if not ask.interactive:
            args += ["run", "--format", "json"]
        if ask.latest:
            args += ["--continue"]
        elif session:
            args += ["--session", session]
        if ask.model:
            args += [f"--model={ask.model}"]
        if "all" in ask.approvals and not ask.interactive:
            args += ["--auto"]
        args += ask.extra
        prompt, stdin = told(ask, instructions=True)
        args += [f"--prompt={prompt}"] if prompt else []
        grants = _grants(ask)
        return Start(
            args,
            stdin=stdin,
            env={"OPENCODE_PERMISSION": msgspec.json.encode(grants).decode()} if grants else {},
            structured=not ask.interactive,
            session=session,
        )

    def parser(self, clock: Clock | None = None) -> "OpencodeParser":
        return OpencodeParser(clock)


PROVIDER = Opencode()


def _grants(ask: Ask) -> dict[str, str]:
    asked = {"edit": "edit", "run": "bash"}
    allowed = [asked[name] for name in ask.approvals if name in asked]
    return dict.fromkeys([*allowed, *ask.allow], "allow") | dict.fromkeys(ask.deny, "deny")


_DENIED = (
    "The user rejected permission",
    "The user has specified a rule which prevents",
    "The user dismissed",
)


def is_denial(words: str) -> bool:
    """Whether a call failed because its permission was refused or could not be asked for."""
    return words.startswith(_DENIED)


class OpencodeParser(JsonLines):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._session: str | None = None

    def read(self, message: dict[str, Any]) -> list[Fact]:
        facts: list[Fact] = []
        session = text(message, "sessionID")
        if session and self._session is None:
            self._session = session
            facts.append(SessionNamed(session))
        part = table(message, "part")
        match message.get("type"):
            case "text":
                facts += said(text(part, "text") or "")
            case "tool_use":
                facts += self._tool(part)
            case "step_finish":
                facts += self._step(part)
            case "error":
                facts += self._error(table(message, "error"))
        return facts

    @staticmethod
    def _tool(part: dict[str, Any]) -> list[Fact]:
        """It is told once, when it has ended."""
        call, name, state = text(part, "callID"), text(part, "tool"), table(part, "state")
        failed = text(state, "status") == "error"
        content = text(state, "error" if failed else "output") or ""
        facts: list[Fact] = [
            called(call, name, state.get("input")),
            answered(call, name, content, result=state.get("metadata"), is_error=failed),
        ]
        return [*facts, *([Denied(name or "?", call)] if failed and is_denial(content) else [])]

    @staticmethod
    def _step(part: dict[str, Any]) -> list[Fact]:
        tokens = table(part, "tokens")
        used = Used(
            None,
            input=number(tokens, "input"),
            output=number(tokens, "output"),
            cache_read=number(tokens, "cache", "read"),
            cache_write=number(tokens, "cache", "write"),
            reasoning=number(tokens, "reasoning"),
            # It says 0 of models whose prices it does not know.
            cost_micros=micros(part, "cost") or None,
            key=text(part, "id"),
        )
        over = text(part, "reason") not in ("tool-calls", None)
        return [used, *([Finished(True)] if over else [])]

    def _error(self, error: dict[str, Any]) -> list[Fact]:
        told = text(error, "data", "message") or text(error, "name") or "The request failed."
        headers = table(error, "data", "responseHeaders")
        limit = limit_in(told, self.clock.now())
        if limit is None and number(error, "data", "statusCode") == 429:
            wait = text(headers, "retry-after") or ""
            reset = self.clock.now() + int(wait) * SECOND if wait.isdecimal() else None
            limit = LimitReached(told, reset)
        return [*([limit] if limit else []), Finished(False, shorten(told))]
