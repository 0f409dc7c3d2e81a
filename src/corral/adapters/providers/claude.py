"""Claude Code: `claude -p --output-format stream-json`.

Its stream has one line for each block of a message, each with the usage that the message began
with; what was really used is in the result line. `total_cost_usd` and `modelUsage` of that line go
on counting, also over a resume in a new process; `model_usage_since_last_result` is what is new.
`subtype` says success even of a failure: `is_error` is what counts.
"""

from typing import Any

from msgspec.structs import replace

from corral.adapters import hook_files
from corral.adapters.providers import tools
from corral.adapters.providers.facts import (
    Denied,
    Fact,
    Finished,
    LimitReached,
    Logged,
    SessionNamed,
    Used,
)
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import (
    Calls,
    JsonLines,
    answered,
    called,
    micros,
    number,
    plus,
    rows,
    said,
    shorten,
    table,
    text,
    words_in,
)
from corral.adapters.providers.provider import Ask, Cli, Start, session_of, started, told
from corral.kernel.clock import SECOND, Clock
from corral.kernel.errors import Refused


class Claude(Cli):
    name = "claude"
    program = "claude"
    quit_command = "/exit"
    acp_args = ()
    acp_program = "claude-agent-acp"
    chooses_session = True
    root_variable = "IS_SANDBOX"
    transcript_files = ".claude/projects/*/{}.jsonl"

    def start(self, ask: Ask, program: str | None = None) -> Start:
        args = [program or self.program]
        session = session_of(ask)
        if not ask.interactive:
            args += ["-p", "--output-format", "stream-json", "--verbose"]
        if ask.latest:
            args += ["--continue"]
        elif session:
            args += ["--resume" if ask.resume else "--session-id", session]
        if ask.model:
            args += [f"--model={ask.model}"]
        if ask.instructions:
            args += [f"--append-system-prompt={ask.instructions}"]
        if ask.tools:
            args += [f"--mcp-config={tools.as_json()}"]
        if ask.hooks:
            args += [f"--settings={hook_files.as_json(self.name)}"]
        args += permissions(ask) + list(ask.extra)
        prompt, stdin = told(ask)
        args += ["--", prompt] if prompt else []
        start = started(args, ask, stdin, session)
        if ask.is_sandboxed:
            start = replace(start, env=start.env | {self.root_variable: "1"})
        return start

    def parser(self, clock: Clock | None = None) -> "ClaudeParser":
        return ClaudeParser(clock)


PROVIDER = Claude()
MAX_MESSAGES = 100  # whose lines may still come, in any order
NOTHING = Used(None)


# Not its mode acceptEdits: that one lets shell commands like touch, mv and rm through, too.
GRANTS = {"edit": ("Edit", "Write", "NotebookEdit"), "run": ("Bash",)}


def permissions(ask: Ask) -> list[str]:
    if "all" in ask.approvals and ask.is_root and not ask.is_sandboxed:
        raise Refused(
            "claude does not accept --yes all as root. Use --yes edit and --yes run, run it as "
            "another user or in a sandbox, or set IS_SANDBOX=1 on a machine made for it.",
            provider="claude",
            reason="root_without_sandbox",
        )
    args = ["--dangerously-skip-permissions"] if "all" in ask.approvals else []
    allowed = [*ask.allow, *([f"mcp__{tools.NAME}"] if ask.tools else [])]
    # At a terminal it asks, and its questions are answered one by one.
    for approved in () if ask.interactive else ask.approvals:
        allowed += GRANTS.get(approved, ())
    if allowed:
        args += [f"--allowedTools={','.join(allowed)}"]
    if ask.deny:
        args += [f"--disallowedTools={','.join(ask.deny)}"]
    return args


class ClaudeParser(JsonLines):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._session: str | None = None
        self._process = ""
        self._turn = 0
        self._messages: dict[str, Used] = {}
        self._before: dict[str | None, Used] = {}
        """By model: what no result line has covered yet, of messages that are no longer open."""
        self._calls = Calls()
        self._limited = False

    def read(self, message: dict[str, Any]) -> list[Fact]:
        match message.get("type"):
            case "system":
                return self._system(message)
            case "assistant":
                return self._assistant(message)
            case "user":
                return self._user(message)
            case "result":
                return self._result(message)
            case "rate_limit_event":
                return self._rate(table(message, "rate_limit_info"))
            case _:
                return []

    def _system(self, message: dict[str, Any]) -> list[Fact]:
        match message.get("subtype"):
            case "init":
                session = text(message, "session_id")
                if session is None or session == self._session:
                    return []  # it comes again with every turn
                self._session = session
                self._process = text(message, "uuid") or session
                version = text(message, "claude_code_version") or text(message, "qwen_code_version")
                return [SessionNamed(session, model=text(message, "model"), version=version)]
            case "permission_denied":
                words = shorten(text(message, "message") or "A tool was denied.", 4_096)
                denied = denial(message)
                return [denied, Logged("warn", words, {"tool": denied.tool})]
            case "api_retry":
                status = number(message, "error_status")
                wait = number(message, "retry_delay_ms")
                return [Logged("warn", f"The model's server said {status}; again in {wait} ms.")]
            case _:
                return []

    def _assistant(self, message: dict[str, Any]) -> list[Fact]:
        body = table(message, "message")
        error = text(message, "error")
        if error or text(body, "model") == "<synthetic>":
            return self._limit(words_in(body.get("content")), message) if error else []
        self._count(body)
        if text(message, "parent_tool_use_id"):
            return []  # what a sub-agent says is not said in this conversation
        facts: list[Fact] = []
        for block in rows(body, "content"):
            if block.get("type") == "text":
                facts += said(text(block, "text") or "")
            elif block.get("type") == "tool_use":
                call, name = text(block, "id"), text(block, "name")
                self._calls.add(call, name)
                facts.append(called(call, name, block.get("input")))
        return facts

    def _count(self, body: dict[str, Any]) -> None:
        key = text(body, "id")
        if key and (used := self.usage(body.get("usage"), text(body, "model"), None)):
            self._messages[key] = used
        if len(self._messages) > MAX_MESSAGES:
            oldest = self._messages.pop(next(iter(self._messages)))
            self._before[oldest.model] = plus(oldest, self._before.get(oldest.model, NOTHING))

    def usage(self, source: Any, model: str | None, key: str | None) -> Used | None:
        """Anthropic counts what came from the cache apart from the input."""
        used = Used(
            model,
            input=number(source, "input_tokens"),
            output=number(source, "output_tokens"),
            cache_read=number(source, "cache_read_input_tokens"),
            cache_write=number(source, "cache_creation_input_tokens"),
            reasoning=number(source, "output_tokens_details", "thinking_tokens"),
            key=key,
        )
        return used if used.input or used.output or used.cache_read or used.cache_write else None

    def _user(self, message: dict[str, Any]) -> list[Fact]:
        if text(message, "parent_tool_use_id"):
            return []
        facts: list[Fact] = []
        for block in rows(message, "message", "content"):
            if block.get("type") != "tool_result":
                continue
            call = text(block, "tool_use_id")
            result = message.get("tool_use_result")
            facts.append(
                answered(
                    call,
                    self._calls.take(call),
                    words_in(block.get("content")),
                    result=result if isinstance(result, dict | list) else None,
                    is_error=block.get("is_error") is True,
                )
            )
        return facts

    def _result(self, message: dict[str, Any]) -> list[Fact]:
        facts: list[Fact] = []
        failed = message.get("is_error") is not False
        told = text(message, "result") or "; ".join(
            part for part in _texts(message.get("errors")) if part
        )
        facts += map(denial, rows(message, "permission_denials"))
        facts += self.totals(message)
        self._messages.clear()
        self._before.clear()
        self._turn += 1
        if failed:
            facts += self._limit(told, message)
        self._limited = False
        facts.append(Finished(not failed, shorten(told) or None))
        return facts

    def totals(self, message: dict[str, Any]) -> list[Fact]:
        """What the turn used, for each model; what an older version does not say is not guessed."""
        key = text(message, "uuid")
        fresh = message.get("model_usage_since_last_result")
        if isinstance(fresh, dict):
            return [_of_model(name, entry, key) for name, entry in fresh.items() if entry]
        used = self.usage(message.get("usage"), self._model(), key)
        if used is None:
            return []
        counted = table(message, "modelUsage").values()
        tokens = sum(number(entry, "inputTokens") for entry in counted)
        cost = micros(message, "total_cost_usd") if tokens == used.input else None
        return [replace(used, cost_micros=cost)]

    def _model(self) -> str | None:
        models = {used.model for used in (*self._messages.values(), *self._before.values())}
        return models.pop() if len(models) == 1 else None

    def _rate(self, info: dict[str, Any]) -> list[Fact]:
        status = text(info, "status")
        reset = number(info, "resetsAt") * SECOND or None
        kind = (text(info, "rateLimitType") or "usage").replace("_", " ")
        if status == "rejected" and info.get("isUsingOverage") is not True:
            self._limited = True
            return [LimitReached(f"The {kind} limit is reached.", reset)]
        if status == "allowed_warning":
            return [Logged("warn", f"The {kind} limit is near.", {"reset_at": reset})]
        return []

    def _limit(self, told: str, message: dict[str, Any]) -> list[Fact]:
        if self._limited:
            return []
        status = number(message, "api_error_status")
        error = text(message, "error") or text(message, "api_error") or ""
        limit = limit_in(told, self.clock.now())
        if limit is None and (status == 429 or error in ("rate_limit", "usage_limit_reached")):
            limit = LimitReached(told or "Too many requests.")
        self._limited = limit is not None
        return [limit] if limit else []

    def pending(self) -> list[Used]:
        sums = dict(self._before)
        for used in self._messages.values():
            sums[used.model] = plus(used, sums.get(used.model, NOTHING))
        place = f"{self._process}/{self._turn}"
        return [replace(used, key=f"{place}/{model}") for model, used in sums.items()]


def denial(source: dict[str, Any]) -> Denied:
    """Read which call of which tool was denied, from a line or an entry of a list."""
    return Denied(text(source, "tool_name") or "?", text(source, "tool_use_id"))


def _of_model(model: str, entry: Any, key: str | None) -> Used:
    return Used(
        model,
        input=number(entry, "inputTokens"),
        output=number(entry, "outputTokens"),
        cache_read=number(entry, "cacheReadInputTokens"),
        cache_write=number(entry, "cacheCreationInputTokens"),
        reasoning=number(entry, "thinkingTokens"),
        cost_micros=micros(entry, "costUSD"),
        key=f"{key}/{model}" if key else None,
    )


def _texts(value: Any) -> list[str]:
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []
