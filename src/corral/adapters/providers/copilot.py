"""GitHub Copilot CLI: `copilot --output-format json`.

The stream has no token counts, so no usage is charged from it. The transcript of the session has
them.
"""

from typing import Any

from corral.adapters.providers.facts import (
    DenialFact,
    LimitFact,
    LogFact,
    ProviderFact,
    ResultFact,
    SessionFact,
)
from corral.adapters.providers.json_lines import (
    JsonLinesParser,
    OpenCalls,
    get_dict,
    get_dicts,
    get_int,
    get_text,
    shorten,
    text_facts,
    tool_call,
    tool_result,
)
from corral.adapters.providers.limits import parse_limit
from corral.adapters.providers.provider import (
    CliProvider,
    LaunchCommand,
    LaunchRequest,
    compose_command,
    split_prompt,
    validate_session_id,
)
from corral.kernel.clock import Clock


class CopilotProvider(CliProvider):
    """GitHub Copilot CLI."""

    name = "copilot"
    program = "copilot"
    quit_command = "/exit"
    accepts_session_id = True
    transcript_files = ".copilot/session-state/{}/events.jsonl"
    acp_args = ("--acp",)

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        args = [program or self.program]
        session = validate_session_id(request)
        if not request.interactive:
            args += ["--output-format", "json"]
        if request.latest:
            args += ["--continue"]
        elif session:
            args += [f"--resume={session}" if request.resume else f"--session-id={session}"]
        if request.model:
            args += [f"--model={request.model}"]
        args += _build_grants(request) + list(request.extra)
        prompt, stdin = split_prompt(request, instructions=True)
        args += [f"--interactive={prompt}"] if prompt else []
        return compose_command(args, request, stdin, session)

    def create_parser(self, clock: Clock | None = None) -> "CopilotParser":
        return CopilotParser(clock)


PROVIDER = CopilotProvider()


def _build_grants(request: LaunchRequest) -> list[str]:
    tools = {"edit": "write", "run": "shell"}
    allowed = [tools[name] for name in request.approvals if name in tools]
    args = ["--allow-all-tools", "--allow-all-paths"] if "all" in request.approvals else []
    args += [f"--allow-tool={tool}" for tool in (*allowed, *request.allow)]
    return args + [f"--deny-tool={tool}" for tool in request.deny]


def is_denial(data: dict[str, Any]) -> bool:
    """Return whether a tool call failed for lack of permission."""
    return get_text(data, "error", "code") in ("denied", "rejected")


class CopilotParser(JsonLinesParser):
    """Parser of the stream of `copilot --output-format json`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._calls = OpenCalls()
        self._error: str | None = None

    def read(self, message: dict[str, Any]) -> list[ProviderFact]:
        data = get_dict(message, "data")
        match message.get("type"):
            case "assistant.message":
                return self._read_message(data)
            case "tool.execution_complete":
                return self._read_tool_result(data)
            case "session.error":
                return self._read_failure(data)
            case "session.warning" | "assistant.turn_retry":
                detail = get_text(data, "message") or get_text(data, "reason") or "A warning."
                return [LogFact("warn", shorten(detail, 4_096))]
            case "result":
                return self._read_result(message)
            case _:
                return []

    def _read_message(self, data: dict[str, Any]) -> list[ProviderFact]:
        facts = text_facts(get_text(data, "content") or "")
        for request in get_dicts(data, "toolRequests"):
            call, name = get_text(request, "toolCallId"), get_text(request, "name")
            self._calls.add(call, name)
            facts.append(tool_call(call, name, request.get("arguments")))
        return facts

    def _read_tool_result(self, data: dict[str, Any]) -> list[ProviderFact]:
        call = get_text(data, "toolCallId")
        content = get_text(data, "result", "content") or get_text(data, "error", "message") or ""
        failed = data.get("success") is not True
        name = self._calls.take(call)
        facts: list[ProviderFact] = [tool_result(call, name, content, is_error=failed)]
        return [*facts, *([DenialFact(name or "?", call)] if is_denial(data) else [])]

    def _read_failure(self, data: dict[str, Any]) -> list[ProviderFact]:
        detail = get_text(data, "message") or "The request failed."
        self._error = detail
        limit = parse_limit(detail, self.clock.now())
        if limit is None and (
            get_int(data, "statusCode") == 429
            or get_text(data, "errorType") in ("rate_limit", "quota")
        ):
            limit = LimitFact(detail)
        return [limit] if limit else [LogFact("error", shorten(detail, 4_096))]

    def _read_result(self, message: dict[str, Any]) -> list[ProviderFact]:
        session = get_text(message, "sessionId")
        detail, self._error = self._error, None
        ok = message.get("exitCode") == 0
        facts: list[ProviderFact] = [SessionFact(session)] if session else []
        return [*facts, ResultFact(ok, None if ok or detail is None else shorten(detail))]
