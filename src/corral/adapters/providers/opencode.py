"""opencode: `opencode run --format json`.

The prompt is on standard input, because opencode adds quotes to a prompt argument.
"""

from typing import Any

import msgspec

from corral.adapters.providers.facts import (
    DenialFact,
    LimitFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    UsageFact,
)
from corral.adapters.providers.json_lines import (
    JsonLinesParser,
    get_dict,
    get_int,
    get_micros,
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
    split_prompt,
    validate_session_id,
)
from corral.kernel.clock import SECOND, Clock


class OpencodeProvider(CliProvider):
    """opencode."""

    name = "opencode"
    program = "opencode"
    quit_command = "/exit"
    acp_args = ("acp",)

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        args = [program or self.program]
        session = validate_session_id(request) if request.resume else None
        if not request.interactive:
            args += ["run", "--format", "json"]
        if request.latest:
            args += ["--continue"]
        elif session:
            args += ["--session", session]
        if request.model:
            args += [f"--model={request.model}"]
        if "all" in request.approvals and not request.interactive:
            args += ["--auto"]
        args += request.extra
        prompt, stdin = split_prompt(request, instructions=True)
        args += [f"--prompt={prompt}"] if prompt else []
        grants = _build_grants(request)
        return LaunchCommand(
            args,
            stdin=stdin,
            env={"OPENCODE_PERMISSION": msgspec.json.encode(grants).decode()} if grants else {},
            structured=not request.interactive,
            session=session,
        )

    def create_parser(self, clock: Clock | None = None) -> "OpencodeParser":
        return OpencodeParser(clock)


PROVIDER = OpencodeProvider()


def _build_grants(request: LaunchRequest) -> dict[str, str]:
    tools = {"edit": "edit", "run": "bash"}
    allowed = [tools[name] for name in request.approvals if name in tools]
    return dict.fromkeys([*allowed, *request.allow], "allow") | dict.fromkeys(request.deny, "deny")


_DENIED = (
    "The user rejected permission",
    "The user has specified a rule which prevents",
    "The user dismissed",
)


def is_denial(error: str) -> bool:
    """Return whether a call failed because its permission was refused or could not be requested."""
    return error.startswith(_DENIED)


class OpencodeParser(JsonLinesParser):
    """Parser of the stream of `opencode run --format json`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._session: str | None = None

    def read(self, message: dict[str, Any]) -> list[ProviderFact]:
        facts: list[ProviderFact] = []
        session = get_text(message, "sessionID")
        if session and self._session is None:
            self._session = session
            facts.append(SessionFact(session))
        part = get_dict(message, "part")
        match message.get("type"):
            case "text":
                facts += text_facts(get_text(part, "text") or "")
            case "tool_use":
                facts += self._tool(part)
            case "step_finish":
                facts += self._step(part)
            case "error":
                facts += self._error(get_dict(message, "error"))
        return facts

    @staticmethod
    def _tool(part: dict[str, Any]) -> list[ProviderFact]:
        """Return the call and its result; the stream reports a call once, at its end."""
        call, name, state = (
            get_text(part, "callID"),
            get_text(part, "tool"),
            get_dict(part, "state"),
        )
        failed = get_text(state, "status") == "error"
        content = get_text(state, "error" if failed else "output") or ""
        facts: list[ProviderFact] = [
            tool_call(call, name, state.get("input")),
            tool_result(call, name, content, result=state.get("metadata"), is_error=failed),
        ]
        return [*facts, *([DenialFact(name or "?", call)] if failed and is_denial(content) else [])]

    @staticmethod
    def _step(part: dict[str, Any]) -> list[ProviderFact]:
        tokens = get_dict(part, "tokens")
        used = UsageFact(
            None,
            input=get_int(tokens, "input"),
            output=get_int(tokens, "output"),
            cache_read=get_int(tokens, "cache", "read"),
            cache_write=get_int(tokens, "cache", "write"),
            reasoning=get_int(tokens, "reasoning"),
            # opencode reports 0 for models whose prices it does not know.
            cost_micros=get_micros(part, "cost") or None,
            key=get_text(part, "id"),
        )
        over = get_text(part, "reason") not in ("tool-calls", None)
        return [used, *([ResultFact(True)] if over else [])]

    def _error(self, error: dict[str, Any]) -> list[ProviderFact]:
        message = (
            get_text(error, "data", "message") or get_text(error, "name") or "The request failed."
        )
        headers = get_dict(error, "data", "responseHeaders")
        limit = parse_limit(message, self.clock.now())
        if limit is None and get_int(error, "data", "statusCode") == 429:
            wait = get_text(headers, "retry-after") or ""
            reset = self.clock.now() + int(wait) * SECOND if wait.isdecimal() else None
            limit = LimitFact(message, reset)
        return [*([limit] if limit else []), ResultFact(False, shorten(message))]
