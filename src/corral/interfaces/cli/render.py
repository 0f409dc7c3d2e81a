"""Showing records: aligned tables for people, JSON for programs.

Text from outside (bodies, names, errors) may hold terminal escapes; nothing of it reaches the
terminal unescaped.
"""

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

    from corral.interfaces.cli.app import Columns

WIDE = 10_000  # where there is no terminal to measure


def write_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def write_line(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")


def console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if stream.isatty() else WIDE, highlight=False, markup=False
    )


# What may be cut, or wrapped, where the terminal is narrow; ids and states never are.
CUT = frozenset(
    {
        "BODY",
        "COMMAND",
        "CONTENT",
        "DATA",
        "DIRECTORY",
        "LABELS",
        "LAST ERROR",
        "MESSAGE",
        "PATH",
        "REASON",
        "REFERENCE",
        "TARGET",
        "TITLE",
        "WHAT",
    }
)
WRAPPED = frozenset({"", "MEANING"})


def write_table(records: Sequence[Any], columns: "Columns") -> None:
    from rich.table import Table
    from rich.text import Text

    rows = [[printable(as_text(cell(record))) for _, cell in columns] for record in records]
    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, (title, _) in enumerate(columns):
        widest = max(len(title), *(len(row[number]) for row in rows))
        elastic = terminal and title in CUT | WRAPPED
        table.add_column(
            title,
            overflow="fold" if title in WRAPPED else "ellipsis",
            no_wrap=title not in WRAPPED,
            min_width=min(widest, 8) if elastic else widest,
        )
    for row in rows:
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row))
    _print(table)


def _print(table: Any) -> None:
    """Print without the blanks that fill up the last column."""
    shown = console()
    with shown.capture() as captured:
        shown.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def write_fields(record: Any, columns: "Columns | None" = None) -> None:
    from rich.table import Table
    from rich.text import Text

    fields = (
        [(title, cell(record)) for title, cell in columns]
        if columns
        else [(name, readable(name, getattr(record, name))) for name in record.__struct_fields__]
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for title, value in fields:
        table.add_row(title, Text(printable(as_text(value))))
    _print(table)


# States stand out by colour too; rich leaves colours away where NO_COLOR or no terminal asks so.
STYLES = {
    "active": "green",
    "broken": "bold red",
    "closed": "dim",
    "dead": "bold red",
    "done": "dim",
    "expired": "yellow",
    "lost": "bold red",
    "ok": "green",
    "open": "green",
    "out": "cyan",
    "paused": "yellow",
    "refused": "yellow",
    "retired": "dim",
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
    if quiet or not sys.stderr.isatty():
        yield lambda done, all: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, all: bar.update(task, completed=done, total=all)
