"""Showing records: aligned tables for people, JSON for programs.

Text from outside (bodies, names, errors) may hold terminal escapes; nothing of it reaches the
terminal unescaped.
"""

import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from corral.kernel.clock import SystemClock, format_duration
from corral.kernel.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from corral.cli.app import Columns

WIDE = 10_000  # where there is no terminal to measure


def write_json(value: Any) -> None:
    whole = [_whole(one) for one in value] if isinstance(value, list) else _whole(value)
    sys.stdout.write(msgspec.json.encode(whole).decode() + "\n")


def _whole(record: Any) -> Any:
    """A record with what only the store's time tells of it."""
    derived = getattr(record, "derived", None)
    return record if derived is None else msgspec.structs.asdict(record) | derived(now())


def write_line(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")


def count(number: int, things: str) -> str:
    """A number of things, given in the plural: 1 agent, 2 agents, 1 log line."""
    words = things.replace("_", " ")
    if number == 1:
        words = words.removesuffix("es" if words.endswith("ches") else "s")
    return f"{number:,} {words}"


def nobody_reads() -> bool:
    """Whether whoever read our output has gone: `| head` has seen enough while nothing comes."""
    try:
        looked = select.poll()
        looked.register(sys.stdout.fileno(), 0)
        return any(found & (select.POLLERR | select.POLLHUP) for _, found in looked.poll(0))
    except (OSError, ValueError):  # it is no file of the system
        return False


def console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if stream.isatty() else WIDE, highlight=False, markup=False
    )


# What may be cut, or wrapped, where the terminal is narrow; ids and states never are.
CUT = frozenset(
    {
        "BECAUSE",
        "BODY",
        "COMMAND",
        "CONTENT",
        "DATA",
        "DIRECTORY",
        "EFFECT",
        "HEARS",
        "LABELS",
        "LAST ERROR",
        "MESSAGE",
        "PATH",
        "PLACE",
        "PLATFORM'S ID",
        "REASON",
        "REFERENCE",
        "TARGET",
        "TITLE",
        "TROUBLE",
        "WHAT",
        "WHY",
    }
)
WRAPPED = frozenset({"FOUND", "MEANING"})


# What a narrow terminal does without, the first first; --json has it all. Before these go columns
# that say nothing, after these the last ones.
LEFT_OUT = (
    "TASK ID",
    "PID",
    "PRIORITY",
    "SHARE",
    "TIMED OUT",
    "INTERRUPTED",
    "CANCELLED",
    "SIGNED WITH",
    "CACHED",
    "FROM",
    "PROJECT",
    "AGENT",
    "OWNER",
    "STARTED",
    "MODEL",
    "COST",
    "REASON",
    "WHAT",
    "UNHEARD",
    "LOOKED AT",
    "STRANGERS",
    "DIRECT",
    "SHOWS AS",
    "DEADLINE",
    "ASKED",
    "ASKER",
    "QUESTION",
    "WIRING",
    "OPTIONS",
)
GAP = 2
NARROW = 8  # what may be cut keeps so much


def write_table(records: Sequence[Any], columns: "Columns") -> None:
    """Aligned, one line a record; on a terminal no wider than that."""
    from rich.table import Table
    from rich.text import Text

    columns, rows, widths = _fitting(records, columns, console().width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for (title, _), width in zip(columns, widths, strict=True):
        wraps = title in WRAPPED
        table.add_column(
            title, overflow="fold" if wraps else "ellipsis", no_wrap=not wraps, width=width
        )
    for row in rows:
        table.add_row(
            *(
                Text(text, style=STYLES.get(text, "") if title == "STATE" else "")
                for (title, _), text in zip(columns, row, strict=True)
            )
        )
    _print(table)


def _fitting(
    records: Sequence[Any], columns: "Columns", width: int
) -> tuple["Columns", list[list[str]], list[int]]:
    """The columns that there is room for, their cells and widths. The first column stays."""
    given = list(columns)
    rows = [[printable(as_text(cell(record))) for _, cell in given] for record in records]
    blank = [title for number, title in enumerate(_titles(given)) if _says_nothing(rows, number)]
    # Of what has no name, what it is about tells it from the others.
    lesser = [title for title in LEFT_OUT if title != "WHAT" or "NAME" not in blank]
    rest = [title for title in reversed(_titles(given)) if title not in lesser]
    for title in (*blank, *lesser, *rest, None):
        widest = [max(map(_cells, column)) for column in zip(_titles(given), *rows, strict=True)]
        least = [
            min(wide, NARROW) if name in CUT | WRAPPED else wide
            for (name, _), wide in zip(given, widest, strict=True)
        ]
        spare = width - sum(least) - GAP * (len(least) - 1)
        if spare >= 0:
            break
        keep = [number for number, (name, _) in enumerate(given) if name != title or not number]
        given = [given[number] for number in keep]
        rows = [[row[number] for number in keep] for row in rows]
    return given, rows, _widened(least, widest, spare)


def _says_nothing(rows: list[list[str]], number: int) -> bool:
    return all(row[number] == as_text(None) for row in rows)


def _titles(columns: "Columns") -> list[str]:
    return [title for title, _ in columns]


def _cells(text: str) -> int:
    """How much room a text takes: some characters are two cells wide."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def _widened(least: list[int], widest: list[int], spare: int) -> list[int]:
    """Widths that use up what is to spare, the least needy columns first."""
    widths = list(least)
    order = sorted(range(len(least)), key=lambda number: widest[number] - least[number])
    for done, number in enumerate(order):
        more = min(widest[number] - least[number], max(spare, 0) // (len(order) - done))
        widths[number] += more
        spare -= more
    return widths


def _print(table: Any) -> None:
    """Print without the blanks that fill up the last column."""
    shown = console()
    with shown.capture() as captured:
        shown.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


class Lines(tuple[str, ...]):
    """A field of several lines. Control characters in a line are spelled out as everywhere."""

    __slots__ = ()


def write_fields(record: Any, columns: "Columns | None" = None) -> None:
    from rich.table import Table
    from rich.text import Text

    fields = (
        [(title, cell(record)) for title, cell in columns]
        if columns
        else [(name, readable(name, value)) for name, value in _fields(record).items()]
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for title, value in fields:
        lines = value if isinstance(value, Lines) else (as_text(value),)
        table.add_row(title, Text("\n".join(map(printable, lines))))
    _print(table)


def _fields(record: Any) -> dict[str, Any]:
    whole = _whole(record)
    return whole if isinstance(whole, dict) else msgspec.structs.asdict(whole)


# States stand out by colour too; rich leaves colours away where NO_COLOR or no terminal asks so.
STYLES = {
    "active": "green",
    "broken": "bold red",
    "closed": "dim",
    "crashed": "red",
    "dead": "bold red",
    "done": "dim",
    "expired": "yellow",
    "failed": "red",
    "interrupted": "red",
    "lost": "bold red",
    "ok": "green",
    "open": "green",
    "out": "cyan",
    "paused": "yellow",
    "refused": "yellow",
    "retired": "dim",
    "running": "green",
    "timed_out": "red",
    "unknown": "bold yellow",
    "up": "green",
    "warning": "yellow",
}


def readable(name: str, value: Any) -> object:
    """A field as people read it: moments as dates, durations as 1h30m."""
    if value is None:
        return "-"
    if name.endswith("_at") or name == "at" or name == "lease_until":
        return f"{moment(value)} ({ago(value)})"
    return format_duration(value) if name.endswith("_ms") else value


def as_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()


# Ages are told by the store's time once a store is open: it is what leases and due times go by.
now: Callable[[], int] = SystemClock().now


def moment(ms: int) -> str:
    """A moment in the user's own time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1_000))


def ago(ms: int) -> str:
    """How far a moment is from now, in its largest unit."""
    distance = now() - ms
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if abs(distance) >= size:
            count = round(abs(distance) / size)
            return f"{count}{unit} ago" if distance > 0 else f"in {count}{unit}"
    return "now"


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], object]]:
    """A bar on standard error for long work, told how many of how many are done."""
    with progress_by_part(what, quiet=quiet) as tell:
        yield lambda done, all: tell("", done, all)


@contextmanager
def progress_by_part(what: str, *, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """The same for work that has parts, each with a name and a count of its own."""
    if quiet or not sys.stderr.isatty():
        yield lambda part, done, all: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda part, done, all: bar.update(
            task, description=f"{what}: {part}" if part else what, completed=done, total=all
        )
