"""The report of a failing test: the expected behaviour, the last events, and process output.

The sections are collected while the fixtures are still alive. Each is read on a thread with a time
limit, so that a store that hangs does not hang the report. A section that cannot be read contains
the error.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.errors import NotFound

LAST_EVENTS = 30
LAST_RUNS = 10
LAST_CHARACTERS = 4_000
MOST_OUTPUT = 1 << 20
SECONDS = 10.0


def sections(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Return the title and text of each section, for a test whose fixtures are still set up."""
    yield "expected behaviour", _behaviour(item)
    funcargs: dict[str, Any] = getattr(item, "funcargs", {})
    home, store, url = (funcargs.get(name) for name in ("home", "store", "url"))
    if isinstance(store, Corral):
        yield "last events of the store", _within_time(lambda: _events(store))
    elif url is not None:
        yield "last events of the store", _within_time(lambda: _with_store(url, _events))
    if home is not None and hasattr(home, "folder_of"):
        folder = Path(home.env["CORRAL_HOME"])
        yield "runs", _within_time(lambda: _with_store(home.url, lambda it: _runs(it, folder)))
        yield from _logs(folder)


def _behaviour(item: pytest.Item) -> str:
    function = getattr(item, "function", None)
    name = item.name.partition("[")
    sentence = name[0].removeprefix("test_").replace("_", " ")
    parameters = f" [{name[2]}" if name[1] else ""
    return "\n".join(filter(None, [sentence + parameters, getattr(function, "__doc__", None)]))


def _with_store(url: str, read: Callable[[Corral], str]) -> str:
    with corral.open(url, create=False) as store:
        return read(store)


def _events(store: Corral) -> str:
    lines = [
        f"{event.at} {event.actor}: {event.kind} {event.verb} {event.subject} {event.data or ''}"
        for event in store.events.newest(limit=LAST_EVENTS).items
    ]
    return "\n".join(lines) or "none"


def _runs(store: Corral, folder: Path) -> str:
    runs = store.runs.list(limit=LAST_RUNS).items
    return "\n\n".join(_run(store, run, folder / "runs" / run.id) for run in runs) or "none"


def _run(store: Corral, run: Run, folder: Path) -> str:
    command = " ".join([run.command, *run.args])
    lines = [f"{run.id} {run.state}, exit {run.exit_code}, {run.reason or 'no reason'}: {command}"]
    lines += [f"  log: {line.message}" for line in store.outputs.log_lines(run.id).items]
    error = folder / "supervisor.error"
    if error.exists():
        lines.append(f"  supervisor: {_end_of(error)}")
    with suppress(NotFound):
        output = store.outputs.open(run.id).bytes(0, MOST_OUTPUT)
        lines.append(f"  output: {output[-LAST_CHARACTERS:].decode(errors='replace')}")
    return "\n".join(lines)


def _logs(folder: Path) -> Iterator[tuple[str, str]]:
    for log in sorted(folder.glob("*.log")):
        yield log.name, _end_of(log)


def _end_of(file: Path) -> str:
    return file.read_bytes()[-LAST_CHARACTERS:].decode(errors="replace")


def _within_time(read: Callable[[], str]) -> str:
    result: list[str] = []

    def work() -> None:
        try:
            result.append(read())
        except Exception as error:  # the report must not replace the failure
            result.append(f"cannot be read: {type(error).__name__}: {error}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return result[0] if result else f"cannot be read within {SECONDS:.0f} s"
