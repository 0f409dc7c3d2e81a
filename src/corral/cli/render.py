"""Output of records: aligned tables for people, JSON for programs.

Bodies, names and errors come from outside and may contain terminal escape sequences. Everything
is escaped before it is written to the terminal.
"""

import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import click
import msgspec

from corral.kernel import display_time
from corral.kernel.clock import DAY, SystemClock, format_duration
from corral.kernel.display_text import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

    from corral.cli.columns import Column, Columns, Fields

UNLIMITED_WIDTH = 10_000  # used when the output is not a terminal


def write_json(value: Any) -> None:
    """Write a record or a list of records as one line of JSON."""
    complete = (
        [_with_derived(record) for record in value]
        if isinstance(value, list)
        else _with_derived(value)
    )
    sys.stdout.write(msgspec.json.encode(complete).decode() + "\n")


def _with_derived(record: Any) -> Any:
    """Add the fields that depend on the current time of the store."""
    derived = getattr(record, "derived", None)
    return record if derived is None else msgspec.structs.asdict(record) | derived(now())


def write_line(text: str) -> None:
    """Write one line, with control characters escaped."""
    sys.stdout.write(escape_unprintable(text) + "\n")


def format_count(number: int, noun: str) -> str:
    """Format a count with a noun given in the plural: 1 agent, 2 agents, 1 log line."""
    text = noun.replace("_", " ")
    if number == 1:
        text = text.removesuffix("es" if text.endswith("ches") else "s")
    return f"{number:,} {text}"


def is_output_closed() -> bool:
    """Return whether the reader of standard output is gone.

    A command that follows a feed writes nothing while nothing happens, so it would not notice by
    SIGPIPE that `| head` has exited.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (OSError, ValueError):  # standard output has no file descriptor
        return False


def console(*, stderr: bool = False) -> "Console":
    """Return a console without markup or highlighting, unlimited in width without a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else UNLIMITED_WIDTH,
        highlight=False,
        markup=False,
    )


GAP = 2
MIN_TRUNCATED_WIDTH = 8


def write_table(records: Sequence[Any], columns: "Columns") -> None:
    """Write an aligned table, one line per record, no wider than the terminal."""
    from rich.table import Table
    from rich.text import Text

    all_columns = columns
    columns, rows, widths = _fit_columns(records, all_columns, console().width)
    _note_hidden_columns(
        column.title
        for column in all_columns
        if column not in columns
        and any(column.cell(record) not in (None, "-") for record in records)
    )
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        wraps = column.shrink == "wrap"
        table.add_column(
            column.title, overflow="fold" if wraps else "ellipsis", no_wrap=not wraps, width=width
        )
    for row in rows:
        table.add_row(
            *(
                Text(text, style=STYLES.get(text, "") if column.is_state else "")
                for column, text in zip(columns, row, strict=True)
            )
        )
    _print(table)


_HIDDEN_COLUMNS = "corral.cli.render.hidden_columns"


def _note_hidden_columns(titles: Iterable[str]) -> None:
    """Remember columns that the terminal is too narrow for, and name them when the command ends.

    One line for all tables of a command, after its output; only on a terminal.
    """
    hidden = dict.fromkeys(titles)
    context = click.get_current_context(silent=True)
    if not hidden or context is None or not sys.stderr.isatty():
        return
    if _HIDDEN_COLUMNS not in context.meta:
        context.meta[_HIDDEN_COLUMNS] = {}
        context.find_root().call_on_close(
            lambda: click.echo(
                click.wrap_text(
                    f"Columns hidden: {', '.join(context.meta[_HIDDEN_COLUMNS])}. "
                    "Widen the terminal or use --json.",
                    width=console(stderr=True).width,
                ),
                err=True,
            )
        )
    context.meta[_HIDDEN_COLUMNS].update(hidden)


def _fit_columns(
    records: Sequence[Any], columns: "Columns", width: int
) -> tuple["Columns", list[list[str]], list[int]]:
    """Return the columns that fit into `width`, their cells and widths. The first column stays."""
    shown = list(columns)
    rows = [
        [escape_unprintable(to_text(column.cell(record))) for column in shown] for record in records
    ]
    minimum, maximum = _width_range(shown, rows)
    for column in _omission_order(columns, rows):
        if _table_width(minimum) <= width:
            break
        index = shown.index(column)
        del shown[index]
        for row in rows:
            del row[index]
        minimum, maximum = _width_range(shown, rows)
    spare = width - _table_width(minimum)
    return shown, rows, _distribute_width(minimum, maximum, spare)


def _omission_order(columns: "Columns", rows: list[list[str]]) -> list["Column"]:
    """Return all columns except the first, in the order in which a narrow terminal omits them."""
    empty = [column for index, column in enumerate(columns) if _is_empty(rows, index)]
    empty_titles = {column.title for column in empty}
    optional = [column for column in columns if column.drop and column.replaces not in empty_titles]
    optional.sort(key=lambda column: -column.drop)
    order = dict.fromkeys([*empty, *optional, *reversed(columns)])
    return [column for column in order if column != columns[0]]


def _width_range(columns: "Columns", rows: list[list[str]]) -> tuple[list[int], list[int]]:
    """Return the minimum and the maximum width of each column."""
    titles = [column.title for column in columns]
    maximum = [max(map(_cell_width, cells)) for cells in zip(titles, *rows, strict=True)]
    minimum = [
        width if column.shrink == "no" else min(width, MIN_TRUNCATED_WIDTH)
        for column, width in zip(columns, maximum, strict=True)
    ]
    return minimum, maximum


def _table_width(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _is_empty(rows: list[list[str]], index: int) -> bool:
    return all(row[index] == to_text(None) for row in rows)


def _cell_width(text: str) -> int:
    """Return the width in terminal cells; some characters take two."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def _distribute_width(minimum: list[int], maximum: list[int], spare: int) -> list[int]:
    """Distribute the spare width, to the columns that need the least first."""
    widths = list(minimum)
    order = sorted(range(len(minimum)), key=lambda index: maximum[index] - minimum[index])
    for done, index in enumerate(order):
        share = min(maximum[index] - minimum[index], max(spare, 0) // (len(order) - done))
        widths[index] += share
        spare -= share
    return widths


def _print(table: Any) -> None:
    """Write a table without the padding after the last column."""
    target = console()
    with target.capture() as captured:
        target.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


class MultilineText(tuple[str, ...]):
    """The value of a field with several lines. Control characters within a line are escaped."""

    __slots__ = ()


def write_fields(record: Any, fields: "Fields | None" = None) -> None:
    """Write one record, one field per line: all fields, or the given ones."""
    from rich.table import Table
    from rich.text import Text

    values = (
        [(title, value(record)) for title, value in fields]
        if fields
        else [(name, format_field(name, value)) for name, value in _fields(record).items()]
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for title, value in values:
        lines = value if isinstance(value, MultilineText) else (to_text(value),)
        table.add_row(title, Text("\n".join(map(escape_unprintable, lines))))
    _print(table)


def _fields(record: Any) -> dict[str, Any]:
    complete = _with_derived(record)
    return complete if isinstance(complete, dict) else msgspec.structs.asdict(complete)


# Colours of states. rich omits colours when NO_COLOR is set or the output is not a terminal.
STYLES = {
    "active": "green",
    "broken": "bold red",
    "claimed": "cyan",
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
    "paused": "yellow",
    "refused": "yellow",
    "retired": "dim",
    "running": "green",
    "timed_out": "red",
    "unconfirmed": "bold yellow",
    "unknown": "bold yellow",
    "up": "green",
    "warning": "yellow",
}


def format_field(name: str, value: Any) -> object:
    """Format a field for people: timestamps as dates, durations as 1h30m."""
    if value is None:
        return "-"
    if name.endswith("_at") or name == "at" or name == "lease_until":
        return f"{format_time(value)} ({format_age(value)})"
    return format_duration(value) if name.endswith("_ms") else value


def to_text(value: object) -> str:
    """Format a value for a cell: `-` for None, JSON for structured values."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()


_clock: ContextVar[Callable[[], int]] = ContextVar("clock", default=SystemClock().now)


@contextmanager
def use_clock(clock: Callable[[], int]) -> Iterator[None]:
    """Show ages relative to `clock` within the block; by default the clock of this machine.

    The clock of the open store also decides leases and due times.
    """
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


def now() -> int:
    """Return the time that ages are relative to, in milliseconds since 1970."""
    return _clock.get()()


def format_time(ms: int) -> str:
    """Format a timestamp in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1_000))


def format_clock(ms: int) -> str:
    """Format a timestamp within the next day as local time, 15:42; a later one with its date."""
    pattern = "%H:%M" if ms - now() < DAY else "%Y-%m-%d %H:%M"
    return time.strftime(pattern, time.localtime(ms / 1_000))


def format_age(ms: int) -> str:
    """Format the distance of a timestamp from now in its largest unit: `5m ago`, `in 2h`."""
    return display_time.format_age(ms, now())


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], object]]:
    """Show a progress bar on standard error; yields a function of (done, total)."""
    with progress_by_part(label, quiet=quiet) as update:
        yield lambda done, total: update("", done, total)


@contextmanager
def progress_by_part(label: str, *, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for work in named parts; yields a function of (part, done, total)."""
    if quiet or not sys.stderr.isatty():
        yield lambda part, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda part, done, total: bar.update(
            task, description=f"{label}: {part}" if part else label, completed=done, total=total
        )
