"""An agent's structured lines, shown to a person as words."""

from typing import TYPE_CHECKING

from corral.adapters.output.lines import Line, Splitter
from corral.adapters.providers.facts import Asked, Fact, Finished, LimitReached, Logged, Said
from corral.adapters.providers.lines import MAX_LINE, facts_of
from corral.domain.runs.model import Mode, Run
from corral.kernel.text import printable

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Parser
    from corral.api import Corral

LONGEST_ARGUMENTS = 100


class Telling:
    """What a stream says, line by line; the rest of it is for programs."""

    def __init__(self, run: Run, parser: "Parser") -> None:
        self._run = run
        self._parser = parser
        self._lines = Splitter(most=MAX_LINE)
        self._warning: str | None = None
        """The last warning: claude repeats a denial as the result of the call."""

    def feed(self, data: bytes) -> str:
        """What is told by the lines that are whole now."""
        return "".join(map(self._told, self._lines.feed(data)))

    def finish(self) -> str:
        """What is told by a last line that has no end, and by words that nothing followed."""
        lines = "".join(map(self._told, self._lines.finish()))
        words = [fact for fact in self._parser.close() if isinstance(fact, Said)]
        return lines + "".join(f"{text}\n" for fact in words if (text := self._tell(fact)))

    def _told(self, line: Line) -> str:
        told = [text for fact in facts_of(self._parser, line) if (text := self._tell(fact))]
        return "".join(f"{text}\n" for text in told)

    def _tell(self, fact: Fact) -> str | None:
        if isinstance(fact, Asked):
            options = f" ({', '.join(map(printable, fact.options))})" if fact.options else ""
            answer = f"`corral send {self._run.name or self._run.id} yes`, or no"
            return f"? {printable(fact.title)}{options}\n  Answer it with {answer}."
        if isinstance(fact, Said) and fact.is_error and fact.content == self._warning:
            return None
        if isinstance(fact, Logged):
            self._warning = fact.message
        return tell(fact)


def telling_of(store: "Corral", run: Run) -> Telling | None:
    """The words of an agent that was started with a structured stream; None of any other run."""
    launch = store.runs.launch_of(run.id)
    if run.mode is Mode.ACP:
        from corral.adapters.providers.acp_parser import AcpParser

        return Telling(run, AcpParser(policy=frozenset(launch.approvals)))
    if run.mode is not Mode.PIPE or run.provider == "plain" or launch.raw:
        return None
    from corral.adapters.providers import registry

    return Telling(run, registry.find(run.provider).parser())


def tell(fact: Fact) -> str | None:
    """One fact in a line or more; None when people need not see it."""
    match fact:
        case Said(role="assistant") if fact.tool_name is not None:
            return f"· {fact.tool_name} {_short(fact.arguments)}".rstrip()
        case Said(role="assistant"):
            return _lines(fact.content) or None
        case Said(role="tool") if fact.is_error:
            return f"  ! {_short(fact.content)}"
        case LimitReached():
            return f"! {printable(fact.message)}"
        case Logged(level="warn" | "error"):
            return f"! {printable(fact.message)}"
        case Finished(ok=False):
            return f"! {printable(fact.message or 'The agent says that it failed.')}"
    return None


def _short(value: object) -> str:
    import msgspec

    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    first = printable(text.strip().partition("\n")[0])
    return first if len(first) <= LONGEST_ARGUMENTS else f"{first[:LONGEST_ARGUMENTS]}…"


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())
