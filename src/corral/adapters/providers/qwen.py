"""Qwen Code: `qwen --output-format stream-json`, lines like Claude's with a meaning of their own.

Its result line counts the whole conversation, also over a resume, and with requests that are not in
the stream. It says success, and exits with 0, when the model's server refused: only the words show
it. Its input tokens hold what came from the cache.
"""

from typing import Any

from corral.adapters.providers.claude import ClaudeParser
from corral.adapters.providers.facts import Fact, Finished, Used
from corral.adapters.providers.gemini import approval
from corral.adapters.providers.limits import limit_in
from corral.adapters.providers.lines import number, text
from corral.adapters.providers.provider import Ask, Cli, Start, session_of, started, told
from corral.kernel.clock import Clock

_REFUSED = "[API Error:"


class Qwen(Cli):
    name = "qwen"
    program = "qwen"
    quit_command = "/quit"
    chooses_session = True
    transcript_files = ".qwen/projects/*/chats/{}.jsonl"
    # Without the mode it decides by itself what it does not ask for.
    acp_args = ("--acp", "--approval-mode=default")

    def start(self, ask: Ask, program: str | None = None) -> Start:
        args = [program or self.program]
        session = session_of(ask)
        if not ask.interactive:
            args += ["--output-format", "stream-json"]
        if ask.latest:
            args += ["--continue"]
        elif session:
            args += ["--resume" if ask.resume else "--session-id", session]
        if ask.model:
            args += [f"--model={ask.model}"]
        if ask.instructions:
            args += [f"--append-system-prompt={ask.instructions}"]
        args += approval(ask, edit="auto-edit")
        if ask.deny:
            args += [f"--exclude-tools={','.join(ask.deny)}"]
        args += ask.extra
        prompt, stdin = told(ask)
        args += [f"--prompt-interactive={prompt}"] if prompt else []
        return started(args, ask, stdin, session)

    def parser(self, clock: Clock | None = None) -> "QwenParser":
        return QwenParser(clock)


PROVIDER = Qwen()


class QwenParser(ClaudeParser):
    def usage(self, source: Any, model: str | None, key: str | None) -> Used | None:
        cached = number(source, "cache_read_input_tokens")
        used = Used(
            model,
            input=max(0, number(source, "input_tokens") - cached),
            output=number(source, "output_tokens"),
            cache_read=cached,
            key=key,
        )
        return used if used.input or used.output or used.cache_read else None

    def totals(self, message: dict[str, Any]) -> list[Fact]:
        used = self.usage(message.get("usage"), self._model(), None)
        session = text(message, "session_id")
        if used is None or session is None:
            return []
        return [
            Used(
                used.model,
                used.input,
                used.output,
                used.cache_read,
                counter=f"qwen/{session}",
            )
        ]

    def _result(self, message: dict[str, Any]) -> list[Fact]:
        facts = super()._result(message)
        told = text(message, "result") or ""
        if not told.startswith(_REFUSED):
            return facts
        limit = limit_in(told, self.clock.now())
        return [
            *(fact for fact in facts if not isinstance(fact, Finished)),
            *([limit] if limit else []),
            Finished(False, told),
        ]
