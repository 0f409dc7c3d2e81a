"""GitHub Copilot CLI: `copilot --output-format json`.

Its stream tells no tokens (its own record of the session does), so nothing is charged from it.
"""

from typing import Any

from corral.adapters.providers.facts import (
    Denied,
    Fact,
    Finished,
    LimitReached,
    Logged,
    SessionNamed,
)
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import (
    Calls,
    JsonLines,
    answered,
    called,
    number,
    rows,
    said,
    shorten,
    table,
    text,
)
from corral.adapters.providers.provider import Ask, Cli, Start, session_of, started, told
from corral.kernel.clock import Clock


class Copilot(Cli):
    name = "copilot"
    program = "copilot"
    quit_command = "/exit"
    chooses_session = True
    transcript_files = ".copilot/session-state/{}/events.jsonl"
    acp_args = ("--acp",)

    def start(self, ask: Ask, program: str | None = None) -> Start:
        args = [program or self.program]
        session = session_of(ask)
        if not ask.interactive:
            args += ["--output-format", "json"]
        if ask.latest:
            args += ["--continue"]
        elif session:
            args += [f"--resume={session}" if ask.resume else f"--session-id={session}"]
        if ask.model:
            args += [f"--model={ask.model}"]
        args += _grants(ask) + list(ask.extra)
        prompt, stdin = told(ask, instructions=True)
        args += [f"--interactive={prompt}"] if prompt else []
        return started(args, ask, stdin, session)

    def parser(self, clock: Clock | None = None) -> "CopilotParser":
        return CopilotParser(clock)


PROVIDER = Copilot()


def _grants(ask: Ask) -> list[str]:
    asked = {"edit": "write", "run": "shell"}
    allowed = [asked[name] for name in ask.approvals if name in asked]
    args = ["--allow-all-tools", "--allow-all-paths"] if "all" in ask.approvals else []
    args += [f"--allow-tool={tool}" for tool in (*allowed, *ask.allow)]
    return args + [f"--deny-tool={tool}" for tool in ask.deny]


def is_denial(data: dict[str, Any]) -> bool:
    """Whether a tool call failed for lack of permission."""
    return text(data, "error", "code") in ("denied", "rejected")


class CopilotParser(JsonLines):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._calls = Calls()
        self._error: str | None = None

    def read(self, message: dict[str, Any]) -> list[Fact]:
        data = table(message, "data")
        match message.get("type"):
            case "assistant.message":
                return self._message(data)
            case "tool.execution_complete":
                return self._tool(data)
            case "session.error":
                return self._failed(data)
            case "session.warning" | "assistant.turn_retry":
                told = text(data, "message") or text(data, "reason") or "A warning."
                return [Logged("warn", shorten(told, 4_096))]
            case "result":
                return self._result(message)
            case _:
                return []

    def _message(self, data: dict[str, Any]) -> list[Fact]:
        facts = said(text(data, "content") or "")
        for request in rows(data, "toolRequests"):
            call, name = text(request, "toolCallId"), text(request, "name")
            self._calls.add(call, name)
            facts.append(called(call, name, request.get("arguments")))
        return facts

    def _tool(self, data: dict[str, Any]) -> list[Fact]:
        call = text(data, "toolCallId")
        content = text(data, "result", "content") or text(data, "error", "message") or ""
        failed = data.get("success") is not True
        name = self._calls.take(call)
        facts: list[Fact] = [answered(call, name, content, is_error=failed)]
        return [*facts, *([Denied(name or "?", call)] if is_denial(data) else [])]

    def _failed(self, data: dict[str, Any]) -> list[Fact]:
        told = text(data, "message") or "The request failed."
        self._error = told
        limit = limit_in(told, self.clock.now())
        if limit is None and (
            number(data, "statusCode") == 429 or text(data, "errorType") in ("rate_limit", "quota")
        ):
            limit = LimitReached(told)
        return [limit] if limit else [Logged("error", shorten(told, 4_096))]

    def _result(self, message: dict[str, Any]) -> list[Fact]:
        session = text(message, "sessionId")
        told, self._error = self._error, None
        ok = message.get("exitCode") == 0
        facts: list[Fact] = [SessionNamed(session)] if session else []
        return [*facts, Finished(ok, None if ok or told is None else shorten(told))]
