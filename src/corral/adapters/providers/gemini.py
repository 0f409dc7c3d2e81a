"""Gemini CLI: `gemini -o stream-json`.

After a failed request, the exit status is the HTTP status modulo 256, so a status over 128 does not
mean a signal. The text of an answer arrives in deltas. Input tokens include the tokens from the
cache.
"""

from typing import Any

from corral.adapters.providers.facts import (
    DenialFact,
    LogFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    UsageFact,
)
from corral.adapters.providers.json_lines import (
    MAX_CONTENT,
    JsonLinesParser,
    OpenCalls,
    get_dict,
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
    refuse_denials,
    split_prompt,
    validate_session_id,
)
from corral.kernel.clock import Clock


class GeminiProvider(CliProvider):
    """Gemini CLI."""

    name = "gemini"
    program = "gemini"
    quit_command = "/quit"
    accepts_session_id = True
    transcript_files = ".gemini/tmp/*/chats/*"
    acp_args = ("--acp",)

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        refuse_denials(self.name, request)
        args = [program or self.program]
        session = validate_session_id(request)
        if not request.interactive:
            args += ["-o", "stream-json"]
        if request.latest:
            args += ["--resume", "latest"]
        elif session:
            args += ["--resume" if request.resume else "--session-id", session]
        if request.model:
            args += [f"--model={request.model}"]
        args += (
            self.trust_args(request)
            + approval_args(request, edit="auto_edit")
            + list(request.extra)
        )
        prompt, stdin = split_prompt(request, instructions=True)
        args += [f"--prompt-interactive={prompt}"] if prompt else []
        if not request.interactive:
            args += ["--prompt="]  # headless mode; the prompt is on standard input
        return compose_command(args, request, stdin, session)

    def trust_args(self, request: LaunchRequest) -> list[str]:
        # In an untrusted directory, gemini exits with 55 or ignores the approvals.
        return ["--skip-trust"] if request.is_trusted else []

    def create_parser(self, clock: Clock | None = None) -> "GeminiParser":
        return GeminiParser(clock)


PROVIDER = GeminiProvider()


def approval_args(request: LaunchRequest, *, edit: str) -> list[str]:
    """Return the approval arguments; `edit` is the name of the mode that approves edits."""
    args = []
    allowed = [*request.allow, *(["run_shell_command"] if "run" in request.approvals else [])]
    if "all" in request.approvals:
        args += ["--approval-mode=yolo"]
    elif "edit" in request.approvals:
        args += [f"--approval-mode={edit}"]
    if allowed:
        args += [f"--allowed-tools={','.join(allowed)}"]
    return args


# Gemini does not register these tools without an approval: a call then fails with "not found".
UNREGISTERED_TOOLS = frozenset(
    {"write_file", "replace", "run_shell_command", "web_fetch", "save_memory"}
)
_DENIED = ("denied by policy", "requires user confirmation", "cancelled by user")


def is_denial(tool: str | None, kind: str | None, content: str) -> bool:
    """Return whether a call failed because its tool was not approved."""
    if kind == "tool_not_registered" or "not found. did you mean" in content.lower():
        return tool in UNREGISTERED_TOOLS
    return kind == "policy_violation" or any(phrase in content.lower() for phrase in _DENIED)


class GeminiParser(JsonLinesParser):
    """Parser of the stream of `gemini -o stream-json`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._text = ""
        self._calls = OpenCalls()
        self._key: str | None = None

    def read(self, message: dict[str, Any]) -> list[ProviderFact]:
        kind = message.get("type")
        if kind == "message":
            if message.get("role") != "assistant":
                return []
            if message.get("delta") is True:
                self._text += get_text(message, "content") or ""
                return self._flush() if len(self._text) > MAX_CONTENT else []
            return [*self._flush(), *text_facts(get_text(message, "content") or "")]
        return [*self._flush(), *self._read_event(str(kind), message)]

    def _flush(self) -> list[ProviderFact]:
        content, self._text = self._text, ""
        return text_facts(content)

    def _read_event(self, kind: str, message: dict[str, Any]) -> list[ProviderFact]:
        match kind:
            case "init":
                session = get_text(message, "session_id")
                self._key = f"{session}/{get_text(message, 'timestamp')}"
                return [SessionFact(session, model=get_text(message, "model"))] if session else []
            case "tool_use":
                call, name = get_text(message, "tool_id"), get_text(message, "tool_name")
                self._calls.add(call, name)
                return [tool_call(call, name, message.get("parameters"))]
            case "tool_result":
                call = get_text(message, "tool_id")
                content = get_text(message, "output") or get_text(message, "error", "message") or ""
                failed, name = get_text(message, "status") != "success", self._calls.take(call)
                facts: list[ProviderFact] = [tool_result(call, name, content, is_error=failed)]
                if failed and is_denial(name, get_text(message, "error", "type"), content):
                    facts.append(DenialFact(name or "?", call))
                return facts
            case "error":
                return [
                    LogFact("warn", shorten(get_text(message, "message") or "An error.", 4_096))
                ]
            case "result":
                return self._read_result(message)
            case _:
                return []

    def _read_result(self, message: dict[str, Any]) -> list[ProviderFact]:
        facts: list[ProviderFact] = []
        for model, stats in get_dict(message, "stats", "models").items():
            cached = get_int(stats, "cached")
            used = UsageFact(
                model,
                input=max(0, get_int(stats, "input_tokens") - cached),
                output=get_int(stats, "output_tokens"),
                cache_read=cached,
                key=f"{self._key}/{model}" if self._key else None,
            )
            if used.input or used.output or used.cache_read:
                facts.append(used)
        if get_text(message, "status") == "success":
            return [*facts, ResultFact(True)]
        detail = get_text(message, "error", "message") or "The request failed."
        limit = parse_limit(detail, self.clock.now())
        return [*facts, *([limit] if limit else []), ResultFact(False, shorten(detail))]

    def end(self) -> list[ProviderFact]:
        return self._flush()
