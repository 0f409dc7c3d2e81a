"""Codex: `codex exec --json`.

`turn.completed` gives the tokens of the whole thread, also over a resume in a new process, and its
input holds what came from the cache. The stream does not say the model; the rollout does.
"""

from typing import Any

from corral.adapters import hook_files
from corral.adapters.providers import tools
from corral.adapters.providers.facts import Fact, Finished, Logged, SessionNamed, Used
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import (
    Calls,
    JsonLines,
    answered,
    called,
    number,
    said,
    shorten,
    table,
    text,
    words_in,
)
from corral.adapters.providers.provider import (
    Ask,
    Cli,
    Start,
    refuse_denials,
    session_of,
    told,
)
from corral.adapters.providers.versions import has_option
from corral.kernel.clock import Clock

# Without this option the TUI is a client of one background server for all sessions of the user. The
# run then works outside its process tree, and ending it ends tools of other sessions.
NO_DAEMON = "--no-daemon"


class Codex(Cli):
    name = "codex"
    program = "codex"
    quit_command = "/quit"
    acp_args = ()
    acp_program = "codex-acp"
    transcript_files = ".codex/sessions/**/rollout-*-{}.jsonl"

    def start(self, ask: Ask, program: str | None = None) -> Start:
        refuse_denials(self.name, ask)
        args = [program or self.program] + ([] if ask.interactive else ["exec"])
        session = session_of(ask) if ask.resume else None
        if ask.goes_on:
            args += ["resume"]
        if not ask.interactive:
            args += ["--json", "--skip-git-repo-check"]
        elif has_option(args[0], NO_DAEMON):
            args += [NO_DAEMON]
        args += self._options(ask) + list(ask.extra)
        if ask.latest:
            args += ["--last"]
        prompt, stdin = told(ask)
        place = [session] if session else []
        if not ask.interactive:
            place += ["-"]  # the prompt comes by standard input
        elif prompt:
            place += [prompt]
        return Start(
            args + (["--", *place] if place else []),
            stdin=stdin if ask.interactive else stdin or "",
            structured=not ask.interactive,
            session=session,
        )

    @staticmethod
    def _options(ask: Ask) -> list[str]:
        args = []
        if ask.model:
            args += [f"--model={ask.model}"]
        if ask.instructions:
            args += ["-c", f"developer_instructions={_quoted(ask.instructions)}"]
        given = tools.as_toml() if ask.tools else []
        given += hook_files.as_toml("codex") if ask.hooks else []
        for setting in given:
            args += ["-c", setting]
        if "all" in ask.approvals:
            args += ["--dangerously-bypass-approvals-and-sandbox"]
        elif "edit" in ask.approvals or "run" in ask.approvals:
            # As configuration: `exec resume` has no --sandbox.
            args += ["-c", 'sandbox_mode="workspace-write"']
        return args

    def parser(self, clock: Clock | None = None) -> "CodexParser":
        return CodexParser(clock)


PROVIDER = Codex()


def _quoted(value: str) -> str:
    """A string of TOML, as which a JSON string is read too."""
    import msgspec

    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


class CodexParser(JsonLines):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._thread: str | None = None
        self._calls = Calls()

    def read(self, message: dict[str, Any]) -> list[Fact]:
        match message.get("type"):
            case "thread.started":
                self._thread = text(message, "thread_id")
                return [SessionNamed(self._thread)] if self._thread else []
            case "item.started":
                return self._began(table(message, "item"))
            case "item.completed":
                return self._ended(table(message, "item"))
            case "turn.completed":
                return [*self._used(table(message, "usage")), Finished(True)]
            case "turn.failed":
                return self._failed(text(message, "error", "message") or "The turn failed.")
            case "error":
                # Trying again, or the same words that `turn.failed` ends with.
                return [Logged("warn", shorten(text(message, "message") or "An error.", 4_096))]
            case _:
                return []

    def _began(self, item: dict[str, Any]) -> list[Fact]:
        key = text(item, "id")
        if key is None or (call := _call(item)) is None:
            return []
        self._calls.add(key, call[0])
        return [called(key, *call)]

    def _ended(self, item: dict[str, Any]) -> list[Fact]:
        match item.get("type"):
            case "agent_message":
                return said(text(item, "text") or "")
            case "error":
                return [Logged("warn", shorten(text(item, "message") or "An error.", 4_096))]
        key, call = text(item, "id"), _call(item)
        if call is None:
            return []
        facts: list[Fact] = [] if self._calls.take(key) else [called(key, *call)]
        failed = text(item, "status") == "failed" or number(item, "exit_code") > 0
        content, result = _outcome(item)
        facts.append(answered(key, call[0], content, result=result, is_error=failed))
        return facts

    def _used(self, usage: dict[str, Any]) -> list[Fact]:
        cached = number(usage, "cached_input_tokens")
        written = number(usage, "cache_write_input_tokens")
        return [
            Used(
                None,
                input=max(0, number(usage, "input_tokens") - cached - written),
                output=number(usage, "output_tokens"),
                cache_read=cached,
                cache_write=written,
                reasoning=number(usage, "reasoning_output_tokens"),
                counter=f"codex/{self._thread}" if self._thread else None,
            )
        ]

    def _failed(self, told: str) -> list[Fact]:
        limit = limit_in(told, self.clock.now())
        return [*([limit] if limit else []), Finished(False, shorten(told))]


_DENIED = (
    "read-only file system",  # its own sandbox
    "operation not permitted",
    "rejected by user",
    "rejected: blocked by policy",
    "patch rejected",
    "approval policy is never; reject command",
)


def is_denial(output: str) -> bool:
    """Whether a call failed because the sandbox or the approval policy did not allow it.

    Codex reports that only in the output for the model. The stream often lacks that output; the
    rollout has it.
    """
    words = output[-4_096:].lower()
    return any(phrase in words for phrase in _DENIED)


def _call(item: dict[str, Any]) -> tuple[str, Any] | None:
    """The tool and its arguments, for an item that is the use of one."""
    match item.get("type"):
        case "command_execution":
            return "shell", {"command": item.get("command")}
        case "mcp_tool_call":
            name = "/".join(part for part in (text(item, "server"), text(item, "tool")) if part)
            return name or "mcp", item.get("arguments")
        case "file_change":
            return "edit", {"changes": item.get("changes")}
        case "web_search":
            return "web_search", {"query": item.get("query")}
        case _:
            return None


def _outcome(item: dict[str, Any]) -> tuple[str, Any]:
    match item.get("type"):
        case "command_execution":
            return text(item, "aggregated_output") or "", {"exit_code": item.get("exit_code")}
        case "mcp_tool_call":
            result = item.get("result")
            error = text(item, "error", "message")
            return error or words_in(table(item, "result").get("content")), result
        case _:
            return text(item, "status") or "", None
