"""Qwen Code: `qwen --output-format stream-json`.

The lines have the format of Claude Code's, with other semantics. The result line has the totals of
the conversation, also across a resume, and includes requests that are not in the stream. After an
API error, the result is `success` and the exit status is 0: only the text shows the error. Input
tokens include the tokens from the cache.
"""

from typing import Any

from corral.adapters.providers.claude import ClaudeParser
from corral.adapters.providers.facts import ProviderFact, ResultFact, UsageFact
from corral.adapters.providers.gemini import approval_args
from corral.adapters.providers.json_lines import get_int, get_text
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

_REFUSED = "[API Error:"


class QwenProvider(CliProvider):
    """Qwen Code."""

    name = "qwen"
    program = "qwen"
    quit_command = "/quit"
    accepts_session_id = True
    transcript_files = ".qwen/projects/*/chats/{}.jsonl"
    # Without this mode, qwen approves some tool calls by itself.
    acp_args = ("--acp", "--approval-mode=default")

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        args = [program or self.program]
        session = validate_session_id(request)
        if not request.interactive:
            args += ["--output-format", "stream-json"]
        if request.latest:
            args += ["--continue"]
        elif session:
            args += ["--resume" if request.resume else "--session-id", session]
        if request.model:
            args += [f"--model={request.model}"]
        if request.instructions:
            args += [f"--append-system-prompt={request.instructions}"]
        args += approval_args(request, edit="auto-edit")
        if request.deny:
            args += [f"--exclude-tools={','.join(request.deny)}"]
        args += request.extra
        prompt, stdin = split_prompt(request)
        args += [f"--prompt-interactive={prompt}"] if prompt else []
        return compose_command(args, request, stdin, session)

    def create_parser(self, clock: Clock | None = None) -> "QwenParser":
        return QwenParser(clock)


PROVIDER = QwenProvider()


class QwenParser(ClaudeParser):
    """Parser of the stream of `qwen --output-format stream-json`."""

    def usage(self, source: Any, model: str | None, key: str | None) -> UsageFact | None:
        cached = get_int(source, "cache_read_input_tokens")
        used = UsageFact(
            model,
            input=max(0, get_int(source, "input_tokens") - cached),
            output=get_int(source, "output_tokens"),
            cache_read=cached,
            key=key,
        )
        return used if used.input or used.output or used.cache_read else None

    def totals(self, message: dict[str, Any]) -> list[ProviderFact]:
        used = self.usage(message.get("usage"), self._model(), None)
        session = get_text(message, "session_id")
        if used is None or session is None:
            return []
        return [
            UsageFact(
                used.model,
                used.input,
                used.output,
                used.cache_read,
                counter=f"qwen/{session}",
            )
        ]

    def _read_result(self, message: dict[str, Any]) -> list[ProviderFact]:
        facts = super()._read_result(message)
        detail = get_text(message, "result") or ""
        if not detail.startswith(_REFUSED):
            return facts
        limit = parse_limit(detail, self.clock.now())
        return [
            *(fact for fact in facts if not isinstance(fact, ResultFact)),
            *([limit] if limit else []),
            ResultFact(False, detail),
        ]
