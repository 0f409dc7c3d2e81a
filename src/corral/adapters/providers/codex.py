"""Codex: `codex exec --json`.

`turn.completed` has the running totals of the thread, also across a resume in a new process. Its
input tokens include the tokens from the cache. The model is only in the rollout, not in the stream.
"""

from typing import Any

from corral.adapters import hook_files
from corral.adapters.providers import mcp_config
from corral.adapters.providers.facts import (
    LogFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    UsageFact,
)
from corral.adapters.providers.json_lines import (
    JsonLinesParser,
    OpenCalls,
    extract_text,
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
    refuse_denials,
    split_prompt,
    validate_session_id,
)
from corral.adapters.providers.versions import has_option
from corral.kernel.clock import Clock

# Without this option, the TUI is a client of one background server for all sessions of the user.
# The agent would then work outside the process tree of the run, and stopping the server would stop
# the tools of other sessions.
NO_DAEMON = "--no-daemon"


class CodexProvider(CliProvider):
    """Codex CLI."""

    name = "codex"
    program = "codex"
    quit_command = "/quit"
    acp_args = ()
    acp_program = "codex-acp"
    transcript_files = ".codex/sessions/**/rollout-*-{}.jsonl"

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        refuse_denials(self.name, request)
        args = [program or self.program] + ([] if request.interactive else ["exec"])
        session = validate_session_id(request) if request.resume else None
        if request.is_continuation:
            args += ["resume"]
        if not request.interactive:
            args += ["--json", "--skip-git-repo-check"]
        elif has_option(args[0], NO_DAEMON):
            args += [NO_DAEMON]
        args += self._build_options(request) + list(request.extra)
        if request.latest:
            args += ["--last"]
        prompt, stdin = split_prompt(request)
        positional = [session] if session else []
        if not request.interactive:
            positional += ["-"]  # read the prompt from standard input
        elif prompt:
            positional += [prompt]
        return LaunchCommand(
            args + (["--", *positional] if positional else []),
            stdin=stdin if request.interactive else stdin or "",
            structured=not request.interactive,
            session=session,
        )

    @staticmethod
    def _build_options(request: LaunchRequest) -> list[str]:
        args = []
        if request.model:
            args += [f"--model={request.model}"]
        if request.instructions:
            args += ["-c", f"developer_instructions={_quote(request.instructions)}"]
        settings = mcp_config.render_toml() if request.tools else []
        settings += hook_files.render_toml("codex") if request.hooks else []
        for setting in settings:
            args += ["-c", setting]
        if "all" in request.approvals:
            args += ["--dangerously-bypass-approvals-and-sandbox"]
        elif "edit" in request.approvals or "run" in request.approvals:
            # A configuration value, because `exec resume` has no --sandbox option.
            args += ["-c", 'sandbox_mode="workspace-write"']
        return args

    def create_parser(self, clock: Clock | None = None) -> "CodexParser":
        return CodexParser(clock)


PROVIDER = CodexProvider()


def _quote(value: str) -> str:
    """Return a TOML string. JSON strings are valid TOML, except for an unescaped DEL."""
    import msgspec

    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


class CodexParser(JsonLinesParser):
    """Parser of the stream of `codex exec --json`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._thread: str | None = None
        self._calls = OpenCalls()

    def read(self, message: dict[str, Any]) -> list[ProviderFact]:
        match message.get("type"):
            case "thread.started":
                self._thread = get_text(message, "thread_id")
                return [SessionFact(self._thread)] if self._thread else []
            case "item.started":
                return self._read_item_start(get_dict(message, "item"))
            case "item.completed":
                return self._read_item_end(get_dict(message, "item"))
            case "turn.completed":
                return [*self._read_usage(get_dict(message, "usage")), ResultFact(True)]
            case "turn.failed":
                return self._read_failure(
                    get_text(message, "error", "message") or "The turn failed."
                )
            case "error":
                # A retry, or the message that `turn.failed` repeats.
                return [
                    LogFact("warn", shorten(get_text(message, "message") or "An error.", 4_096))
                ]
            case _:
                return []

    def _read_item_start(self, item: dict[str, Any]) -> list[ProviderFact]:
        key = get_text(item, "id")
        if key is None or (call := _call(item)) is None:
            return []
        self._calls.add(key, call[0])
        return [tool_call(key, *call)]

    def _read_item_end(self, item: dict[str, Any]) -> list[ProviderFact]:
        match item.get("type"):
            case "agent_message":
                return text_facts(get_text(item, "text") or "")
            case "error":
                return [LogFact("warn", shorten(get_text(item, "message") or "An error.", 4_096))]
        key, call = get_text(item, "id"), _call(item)
        if call is None:
            return []
        facts: list[ProviderFact] = [] if self._calls.take(key) else [tool_call(key, *call)]
        failed = get_text(item, "status") == "failed" or get_int(item, "exit_code") > 0
        content, result = _parse_outcome(item)
        facts.append(tool_result(key, call[0], content, result=result, is_error=failed))
        return facts

    def _read_usage(self, usage: dict[str, Any]) -> list[ProviderFact]:
        cached = get_int(usage, "cached_input_tokens")
        written = get_int(usage, "cache_write_input_tokens")
        return [
            UsageFact(
                None,
                input=max(0, get_int(usage, "input_tokens") - cached - written),
                output=get_int(usage, "output_tokens"),
                cache_read=cached,
                cache_write=written,
                reasoning=get_int(usage, "reasoning_output_tokens"),
                counter=f"codex/{self._thread}" if self._thread else None,
            )
        ]

    def _read_failure(self, detail: str) -> list[ProviderFact]:
        limit = parse_limit(detail, self.clock.now())
        return [*([limit] if limit else []), ResultFact(False, shorten(detail))]


_DENIED = (
    "read-only file system",  # its own sandbox
    "operation not permitted",
    "rejected by user",
    "rejected: blocked by policy",
    "patch rejected",
    "approval policy is never; reject command",
)


def is_denial(output: str) -> bool:
    """Return whether the sandbox or the approval policy denied a call.

    Codex reports a denial only in the output for the model. The stream often lacks that output; the
    rollout has it.
    """
    tail = output[-4_096:].lower()
    return any(phrase in tail for phrase in _DENIED)


def _call(item: dict[str, Any]) -> tuple[str, Any] | None:
    """Return the tool and the arguments of an item; None if the item is not a tool call."""
    match item.get("type"):
        case "command_execution":
            return "shell", {"command": item.get("command")}
        case "mcp_tool_call":
            name = "/".join(
                part for part in (get_text(item, "server"), get_text(item, "tool")) if part
            )
            return name or "mcp", item.get("arguments")
        case "file_change":
            return "edit", {"changes": item.get("changes")}
        case "web_search":
            return "web_search", {"query": item.get("query")}
        case _:
            return None


def _parse_outcome(item: dict[str, Any]) -> tuple[str, Any]:
    """Return the output and the structured result of a tool call."""
    match item.get("type"):
        case "command_execution":
            return get_text(item, "aggregated_output") or "", {"exit_code": item.get("exit_code")}
        case "mcp_tool_call":
            result = item.get("result")
            error = get_text(item, "error", "message")
            return error or extract_text(get_dict(item, "result").get("content")), result
        case _:
            return get_text(item, "status") or "", None
