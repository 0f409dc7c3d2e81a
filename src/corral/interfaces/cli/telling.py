"""An agent's structured lines, shown to a person as words."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from corral.adapters.providers.facts import Asked, Finished, LimitReached, Logged, Said
from corral.interfaces.cli.render import printable
from corral.rooms.runs.model import Mode, Run

if TYPE_CHECKING:
    from corral.library import Corral

LONGEST_ARGUMENTS = 100


class Telling:
    """What a stream says, line by line; the rest of it is for programs."""

    def __init__(self, run: Run, facts: Callable[[bytes], Iterable[object]]) -> None:
        self._run = run
        self._facts = facts
        self._left = b""

    def show(self, data: bytes) -> bytes:
        *lines, self._left = (self._left + data).split(b"\n")
        told = [text for line in lines for fact in self._facts(line) if (text := self._tell(fact))]
        return "".join(f"{text}\n" for text in told).encode()

    def _tell(self, fact: object) -> str | None:
        if isinstance(fact, Asked):
            options = f" ({', '.join(map(printable, fact.options))})" if fact.options else ""
            answer = f"`corral send {self._run.name or self._run.id} yes`, or no"
            return f"? {printable(fact.title)}{options}\n  Answer it with {answer}."
        return tell(fact)


def telling_of(store: "Corral", run: Run) -> Telling | None:
    """The words of an agent that was started with a structured stream; None of any other run."""
    launch = store.runs.launch_of(run.id)
    if run.mode is Mode.ACP:
        from corral.adapters.providers.acp_parser import AcpParser

        return Telling(run, AcpParser(policy=frozenset(launch.approvals)).feed)
    if run.mode is not Mode.PIPE or run.provider == "plain" or launch.raw:
        return None
    from corral.adapters.providers import registry

    return Telling(run, registry.find(run.provider).parser().feed)


def tell(fact: object) -> str | None:
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
