"""An agent's structured lines, shown to a person as words."""

from typing import TYPE_CHECKING

from corral.adapters.output.lines import Line, Splitter
from corral.adapters.providers.facts import Fact, Finished, LimitReached, Logged, Said
from corral.adapters.providers.lines import MAX_LINE, facts_of
from corral.kernel.text import printable
from corral.rooms.runs.model import Mode, Run

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Parser
    from corral.library import Corral

LONGEST_ARGUMENTS = 100


class Telling:
    """What a stream says, line by line; the rest of it is for programs."""

    def __init__(self, parser: "Parser") -> None:
        self._parser = parser
        self._lines = Splitter(most=MAX_LINE)

    def feed(self, data: bytes) -> str:
        """What is told by the lines that are whole now."""
        return "".join(map(self._told, self._lines.feed(data)))

    def finish(self) -> str:
        """What is told by a last line that has no end."""
        return "".join(map(self._told, self._lines.finish()))

    def _told(self, line: Line) -> str:
        told = [text for fact in facts_of(self._parser, line) if (text := tell(fact))]
        return "".join(f"{text}\n" for text in told)


def telling_of(store: "Corral", run: Run) -> Telling | None:
    """The words of an agent that was started with a structured stream; None of any other run."""
    if run.mode is not Mode.PIPE or run.provider == "plain" or store.runs.launch_of(run.id).raw:
        return None
    from corral.adapters.providers import registry

    return Telling(registry.find(run.provider).parser())


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
