"""Claude Code: `claude -p --output-format stream-json`.

The stream has one line per block of a message. Each of these lines has the usage at the start of
the message; the actual usage is in the result line. `total_cost_usd` and `modelUsage` of the result
line are running totals, also across a resume in a new process; `model_usage_since_last_result` is
the increment. `subtype` is `success` even after a failure: use `is_error`.
"""

from typing import Any

from msgspec.structs import replace

from corral.adapters import hook_files
from corral.adapters.providers import mcp_config
from corral.adapters.providers.facts import (
    DenialFact,
    LimitFact,
    LogFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    UsageFact,
)
from corral.adapters.providers.json_lines import (
    JsonLinesParser,
    OpenCalls,
    add_usage,
    extract_text,
    get_dict,
    get_dicts,
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
    compose_command,
    split_prompt,
    validate_session_id,
)
from corral.kernel.clock import SECOND, Clock
from corral.kernel.errors import Refused


class ClaudeProvider(CliProvider):
    """Claude Code."""

    name = "claude"
    program = "claude"
    quit_command = "/exit"
    acp_args = ()
    acp_program = "claude-agent-acp"
    accepts_session_id = True
    root_variable = "IS_SANDBOX"
    transcript_files = ".claude/projects/*/{}.jsonl"

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        args = [program or self.program]
        session = validate_session_id(request)
        if not request.interactive:
            args += ["-p", "--output-format", "stream-json", "--verbose"]
        if request.latest:
            args += ["--continue"]
        elif session:
            args += ["--resume" if request.resume else "--session-id", session]
        if request.model:
            args += [f"--model={request.model}"]
        if request.instructions:
            args += [f"--append-system-prompt={request.instructions}"]
        if request.tools:
            args += [f"--mcp-config={mcp_config.render_json()}"]
        if request.hooks:
            args += [f"--settings={hook_files.render_json(self.name)}"]
        args += permission_args(request) + list(request.extra)
        prompt, stdin = split_prompt(request)
        args += ["--", prompt] if prompt else []
        start = compose_command(args, request, stdin, session)
        if request.is_sandboxed:
            start = replace(start, env=start.env | {self.root_variable: "1"})
        return start

    def create_parser(self, clock: Clock | None = None) -> "ClaudeParser":
        return ClaudeParser(clock)


PROVIDER = ClaudeProvider()
MAX_OPEN_MESSAGES = 100  # messages whose lines may still arrive, in any order
NO_USAGE = UsageFact(None)


# Used in place of the mode acceptEdits, which also allows shell commands like touch, mv and rm.
TOOL_GRANTS = {"edit": ("Edit", "Write", "NotebookEdit"), "run": ("Bash",)}


def permission_args(request: LaunchRequest) -> list[str]:
    """Return the arguments for approvals, allowed and denied tools.

    Raises Refused for `all` as root outside a sandbox, which Claude Code does not accept.
    """
    if "all" in request.approvals and request.is_root and not request.is_sandboxed:
        raise Refused(
            "claude does not accept --yes all as root. Use --yes edit and --yes run, run it as "
            "another user or in a sandbox, or set IS_SANDBOX=1 on a dedicated machine.",
            provider="claude",
            reason="root_without_sandbox",
        )
    args = ["--dangerously-skip-permissions"] if "all" in request.approvals else []
    allowed = [*request.allow, *([f"mcp__{mcp_config.SERVER_NAME}"] if request.tools else [])]
    # On a terminal, approvals answer the dialogs one by one instead.
    for approval in () if request.interactive else request.approvals:
        allowed += TOOL_GRANTS.get(approval, ())
    if allowed:
        args += [f"--allowedTools={','.join(allowed)}"]
    if request.deny:
        args += [f"--disallowedTools={','.join(request.deny)}"]
    return args


class ClaudeParser(JsonLinesParser):
    """Parser of Claude Code's stream; also the base of Qwen Code's, which has the same lines."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._session: str | None = None
        self._process = ""
        self._turn = 0
        self._messages: dict[str, UsageFact] = {}
        self._before: dict[str | None, UsageFact] = {}
        """Usage by model of evicted messages that no result line covers yet."""
        self._calls = OpenCalls()
        self._limited = False

    def read(self, message: dict[str, Any]) -> list[ProviderFact]:
        match message.get("type"):
            case "system":
                return self._read_system(message)
            case "assistant":
                return self._read_assistant(message)
            case "user":
                return self._read_user(message)
            case "result":
                return self._read_result(message)
            case "rate_limit_event":
                return self._read_rate_limit(get_dict(message, "rate_limit_info"))
            case _:
                return []

    def _read_system(self, message: dict[str, Any]) -> list[ProviderFact]:
        match message.get("subtype"):
            case "init":
                session = get_text(message, "session_id")
                if session is None or session == self._session:
                    return []  # repeated with every turn
                self._session = session
                self._process = get_text(message, "uuid") or session
                version = get_text(message, "claude_code_version") or get_text(
                    message, "qwen_code_version"
                )
                return [SessionFact(session, model=get_text(message, "model"), version=version)]
            case "permission_denied":
                warning = shorten(get_text(message, "message") or "A tool was denied.", 4_096)
                denied = parse_denial(message)
                return [denied, LogFact("warn", warning, {"tool": denied.tool})]
            case "api_retry":
                status = get_int(message, "error_status")
                wait = get_int(message, "retry_delay_ms")
                return [LogFact("warn", f"The API returned {status}; retry in {wait} ms.")]
            case _:
                return []

    def _read_assistant(self, message: dict[str, Any]) -> list[ProviderFact]:
        body = get_dict(message, "message")
        error = get_text(message, "error")
        if error or get_text(body, "model") == "<synthetic>":
            return self._detect_limit(extract_text(body.get("content")), message) if error else []
        self._count_usage(body)
        if get_text(message, "parent_tool_use_id"):
            return []  # the turns of a sub-agent are not part of this conversation
        facts: list[ProviderFact] = []
        for block in get_dicts(body, "content"):
            if block.get("type") == "text":
                facts += text_facts(get_text(block, "text") or "")
            elif block.get("type") == "tool_use":
                call, name = get_text(block, "id"), get_text(block, "name")
                self._calls.add(call, name)
                facts.append(tool_call(call, name, block.get("input")))
        return facts

    def _count_usage(self, body: dict[str, Any]) -> None:
        key = get_text(body, "id")
        if key and (used := self.usage(body.get("usage"), get_text(body, "model"), None)):
            self._messages[key] = used
        if len(self._messages) > MAX_OPEN_MESSAGES:
            oldest = self._messages.pop(next(iter(self._messages)))
            self._before[oldest.model] = add_usage(oldest, self._before.get(oldest.model, NO_USAGE))

    def usage(self, source: Any, model: str | None, key: str | None) -> UsageFact | None:
        """Return the usage of a message; its input already excludes tokens from the cache."""
        used = UsageFact(
            model,
            input=get_int(source, "input_tokens"),
            output=get_int(source, "output_tokens"),
            cache_read=get_int(source, "cache_read_input_tokens"),
            cache_write=get_int(source, "cache_creation_input_tokens"),
            reasoning=get_int(source, "output_tokens_details", "thinking_tokens"),
            key=key,
        )
        return used if used.input or used.output or used.cache_read or used.cache_write else None

    def _read_user(self, message: dict[str, Any]) -> list[ProviderFact]:
        if get_text(message, "parent_tool_use_id"):
            return []
        facts: list[ProviderFact] = []
        for block in get_dicts(message, "message", "content"):
            if block.get("type") != "tool_result":
                continue
            call = get_text(block, "tool_use_id")
            result = message.get("tool_use_result")
            facts.append(
                tool_result(
                    call,
                    self._calls.take(call),
                    extract_text(block.get("content")),
                    result=result if isinstance(result, dict | list) else None,
                    is_error=block.get("is_error") is True,
                )
            )
        return facts

    def _read_result(self, message: dict[str, Any]) -> list[ProviderFact]:
        facts: list[ProviderFact] = []
        failed = message.get("is_error") is not False
        detail = get_text(message, "result") or "; ".join(
            part for part in _filter_texts(message.get("errors")) if part
        )
        facts += map(parse_denial, get_dicts(message, "permission_denials"))
        facts += self.totals(message)
        self._messages.clear()
        self._before.clear()
        self._turn += 1
        if failed:
            facts += self._detect_limit(detail, message)
        self._limited = False
        facts.append(ResultFact(not failed, shorten(detail) or None))
        return facts

    def totals(self, message: dict[str, Any]) -> list[ProviderFact]:
        """Return the usage of the turn by model.

        Older versions report only running totals of the cost. The cost is used only if the totals
        cover exactly this turn, and is otherwise None.
        """
        key = get_text(message, "uuid")
        increment = message.get("model_usage_since_last_result")
        if isinstance(increment, dict):
            return [
                _parse_model_usage(name, entry, key) for name, entry in increment.items() if entry
            ]
        used = self.usage(message.get("usage"), self._model(), key)
        if used is None:
            return []
        counted = get_dict(message, "modelUsage").values()
        tokens = sum(get_int(entry, "inputTokens") for entry in counted)
        cost = get_micros(message, "total_cost_usd") if tokens == used.input else None
        return [replace(used, cost_micros=cost)]

    def _model(self) -> str | None:
        models = {used.model for used in (*self._messages.values(), *self._before.values())}
        return models.pop() if len(models) == 1 else None

    def _read_rate_limit(self, info: dict[str, Any]) -> list[ProviderFact]:
        status = get_text(info, "status")
        reset = get_int(info, "resetsAt") * SECOND or None
        kind = (get_text(info, "rateLimitType") or "usage").replace("_", " ")
        if status == "rejected" and info.get("isUsingOverage") is not True:
            self._limited = True
            return [LimitFact(f"The {kind} limit is reached.", reset)]
        if status == "allowed_warning":
            return [LogFact("warn", f"The {kind} limit is near.", {"reset_at": reset})]
        return []

    def _detect_limit(self, detail: str, message: dict[str, Any]) -> list[ProviderFact]:
        if self._limited:
            return []
        status = get_int(message, "api_error_status")
        error = get_text(message, "error") or get_text(message, "api_error") or ""
        limit = parse_limit(detail, self.clock.now())
        if limit is None and (status == 429 or error in ("rate_limit", "usage_limit_reached")):
            limit = LimitFact(detail or "Too many requests.")
        self._limited = limit is not None
        return [limit] if limit else []

    def pending(self) -> list[UsageFact]:
        """Return the usage since the last result line, with a key of the process and turn."""
        sums = dict(self._before)
        for used in self._messages.values():
            sums[used.model] = add_usage(used, sums.get(used.model, NO_USAGE))
        prefix = f"{self._process}/{self._turn}"
        return [replace(used, key=f"{prefix}/{model}") for model, used in sums.items()]


def parse_denial(source: dict[str, Any]) -> DenialFact:
    """Return the denial in a `permission_denied` line or an entry of `permission_denials`."""
    return DenialFact(get_text(source, "tool_name") or "?", get_text(source, "tool_use_id"))


def _parse_model_usage(model: str, entry: Any, key: str | None) -> UsageFact:
    return UsageFact(
        model,
        input=get_int(entry, "inputTokens"),
        output=get_int(entry, "outputTokens"),
        cache_read=get_int(entry, "cacheReadInputTokens"),
        cache_write=get_int(entry, "cacheCreationInputTokens"),
        reasoning=get_int(entry, "thinkingTokens"),
        cost_micros=get_micros(entry, "costUSD"),
        key=f"{key}/{model}" if key else None,
    )


def _filter_texts(value: Any) -> list[str]:
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []
