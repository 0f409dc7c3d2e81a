"""Render an agent's structured output as text for people."""

from typing import TYPE_CHECKING

from corral.adapters.output.lines import LineSplitter, OutputLine
from corral.adapters.providers.facts import (
    LimitFact,
    LogFact,
    PermissionFact,
    ProviderFact,
    ResultFact,
    TurnFact,
)
from corral.adapters.providers.json_lines import MAX_LINE, parse_line
from corral.domain.runs.model import Launch, Run, RunMode
from corral.kernel.display_text import escape_unprintable

if TYPE_CHECKING:
    from corral.adapters.providers.provider import StreamParser

MAX_ARGUMENTS = 100


class StreamRenderer:
    """Renders a structured stream line by line; events without text for people are skipped."""

    def __init__(self, run: Run, parser: "StreamParser") -> None:
        self._run = run
        self._parser = parser
        self._lines = LineSplitter(max_bytes=MAX_LINE)
        self._warning: str | None = None
        """The last warning, because claude repeats a denial as the result of the tool call."""

    def feed(self, data: bytes) -> str:
        """Return the text of the lines that are complete now."""
        return "".join(map(self._render_line, self._lines.feed(data)))

    def finish(self) -> str:
        """Return the text of an incomplete last line and of buffered messages."""
        lines = "".join(map(self._render_line, self._lines.finish()))
        messages = [fact for fact in self._parser.close() if isinstance(fact, TurnFact)]
        return lines + "".join(f"{text}\n" for fact in messages if (text := self._render(fact)))

    def _render_line(self, line: OutputLine) -> str:
        texts = [text for fact in parse_line(self._parser, line) if (text := self._render(fact))]
        return "".join(f"{text}\n" for text in texts)

    def _render(self, fact: ProviderFact) -> str | None:
        if isinstance(fact, PermissionFact):
            options = (
                f" ({', '.join(map(escape_unprintable, fact.options))})" if fact.options else ""
            )
            answer = f"`corral send {self._run.name or self._run.id} yes`, or no"
            return f"? {escape_unprintable(fact.title)}{options}\n  Answer it with {answer}."
        if isinstance(fact, TurnFact) and fact.is_error and fact.content == self._warning:
            return None
        if isinstance(fact, LogFact):
            self._warning = fact.message
        return render_fact(fact)


def find_renderer(run: Run, launch: Launch) -> StreamRenderer | None:
    """Return the renderer for an agent with a structured stream; None for any other run."""
    if run.mode is RunMode.ACP:
        from corral.adapters.providers.acp_parser import AcpParser

        return StreamRenderer(run, AcpParser(policy=frozenset(launch.approvals)))
    if run.mode is not RunMode.PIPE or run.provider == "plain" or launch.raw:
        return None
    from corral.adapters.providers import registry

    return StreamRenderer(run, registry.get_provider(run.provider).create_parser())


def render_fact(fact: ProviderFact) -> str | None:
    """Return a fact as one or more lines; None when people need not see it."""
    match fact:
        case TurnFact(role="assistant") if fact.tool_name is not None:
            return f"· {fact.tool_name} {_shorten(fact.arguments)}".rstrip()
        case TurnFact(role="assistant"):
            return _clean_lines(fact.content) or None
        case TurnFact(role="tool") if fact.is_error:
            return f"  ! {_shorten(fact.content)}"
        case LimitFact():
            return f"! {escape_unprintable(fact.message)}"
        case LogFact(level="warn" | "error"):
            return f"! {escape_unprintable(fact.message)}"
        case ResultFact(ok=False):
            return f"! {escape_unprintable(fact.message or 'The agent reported a failure.')}"
    return None


def _shorten(value: object) -> str:
    import msgspec

    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    first = escape_unprintable(text.strip().partition("\n")[0])
    return first if len(first) <= MAX_ARGUMENTS else f"{first[:MAX_ARGUMENTS]}…"


def _clean_lines(text: str) -> str:
    return "\n".join(escape_unprintable(line) for line in text.splitlines())
